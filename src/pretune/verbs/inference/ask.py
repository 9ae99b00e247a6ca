"""The `ask` verb: zero-shot and few-shot prompting of a language model, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reads_files, writes_cells
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb


@verb(
    only(
        "text",
        "pair",
        "label",
        where="to files and --examples",
        when=lambda o: o.examples is not None or reads_files(o),
    ),
    only("shots", "seed", where="with --examples", when=lambda o: o.examples is not None),
    only("calibrate", where="with --answers", when=lambda o: bool(o.answers)),
    only("max_new_tokens", where="without --answers, to generated answers", when=lambda o: not o.answers),
    only("safe_csv", where="with --out that ends in .csv or .tsv", when=writes_cells),
    common=(
        "inputs",
        "template",
        "answers",
        "examples",
        "shots",
        "calibrate",
        "max_new_tokens",
        "text",
        "label",
        "out",
    ),
    out=check_new_file,
)
def ask(
    model: opt.Model,
    inputs: opt.Paths = (),
    *,
    template: str = "",
    answers: Sequence[str] = (),
    examples: str | Path | opt.Table | None = None,
    shots: int = 1,
    calibrate: bool = False,
    max_new_tokens: int = 20,
    text: opt.Text = None,
    pair: opt.Pair = None,
    label: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    safe_csv: opt.SafeCsv = False,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Prompt a pretrained model with a cloze template: zero-shot, one-shot, or few-shot.

    A masked language model chooses among single words; a generative model ranks answers of any length, or generates
    one. An entailment classifier chooses the answer whose hypothesis follows from the text. Without a template, an
    encoder with examples or without a language-model head chooses the answer whose examples (or whose name) have the
    embedding most similar to that of the text.

    Parameters
    ----------
    model
        Run folder or model folder of a masked language model (BERT), a generative model (GPT-2), an entailment classifier, or
        another encoder.
    inputs
        Texts to classify or complete, or files of them: .csv, .tsv, .jsonl, or .parquet.
    template
        Prompt template with {text} (and {pair}) for the input and [MASK] for the answer, as in "{text} It was [MASK]."; by
        default "{text} [MASK]", and the hypothesis "This text is about [MASK]." for an entailment classifier.
    answers
        Answers to choose from, as ANSWER or LABEL:ANSWER; without them, a generative model generates the answer.
    examples
        Labeled examples to sample from: in-context examples of generative models, or examples to compare embeddings with.
    shots
        Number of examples to sample; per class, if there are answers to choose from.
    calibrate
        Divide the probability of each answer by its probability for a content-free text (contextual calibration).
    max_new_tokens
        Maximum number of tokens to generate for an answer.
    label
        Column with the label in the examples, and in files, whose answers are then scored.
    seed
        Random seed of the choice and order of in-context examples.
    out
        Write rows and answers to this .csv, .tsv, .jsonl, or .parquet file.

    Examples
    --------
    >>> ask("runs/mine", ["a delightful film"], template="It was [MASK].", answers=["good", "bad"])[0]["label"]  # doctest: +SKIP
    'good'
    """
    from contextlib import ExitStack

    from pretune.inference.ask import ClozeQuestion, load_cloze_predictor, score_answers, shuffle_examples
    from pretune.inference.predict import texts_as_excerpt
    from pretune.inference.prediction_table import PredictionColumns, read_file_excerpts
    from pretune.runtime.errors import PretuneError
    from pretune.text.corpus.table_writer import check_table_suffix, table_writer
    from pretune.text.examples.few_shot import sample_examples, sample_per_class
    from pretune.text.examples.labeled import LabeledRows, read_labeled
    from pretune.verbs.shared_inputs import as_path, columns_by_role, open_reference, split_files

    files, texts = split_files(inputs)
    if not files and not texts:
        raise PretuneError("no inputs were given; give texts or files")
    if out is not None:
        check_table_suffix(out)
        if Path(out).resolve() in {file.resolve() for file in files}:
            raise PretuneError(f"{out}: --out is also an input file; choose another --out")
    columns = columns_by_role(None, text=text, pair=pair, label=label)
    if any(":" in answer for answer in answers) and not all(":" in answer for answer in answers):
        raise PretuneError(f"--answers {', '.join(answers)}: give a label (LABEL:ANSWER) for all answers, or for none")
    labels = [answer.partition(":")[0].strip() for answer in answers]
    words = "/".join(answers) if any(":" in answer for answer in answers) else ""
    shown = None
    if examples is not None:
        found = read_labeled(as_path(examples), columns)
        shown = shuffle_examples((sample_per_class if labels else sample_examples)(found, shots, seed), seed)
    answer = load_cloze_predictor(
        open_reference(model),
        ClozeQuestion(template, labels, words, shown, calibrate, max_new_tokens),
        ignore_mismatched,
    )
    judged = bool(files and label)
    if not files:
        columns = {"text": "text"}
    elif not judged:
        columns.pop("label", None)
    beside, rows = PredictionColumns(False, nested=out is None), 0
    kept, said, expected = list[Any](), list[Any](), list[str]()
    asked: LabeledRows | None = None
    with ExitStack() as stack:
        write: Any = kept.extend if out is None else stack.enter_context(table_writer(out, safe=safe_csv))
        for part in read_file_excerpts(files) if files else [texts_as_excerpt(texts)]:
            # Columns are inferred from the first rows of a file.
            asked = read_labeled(part, asked.columns if asked and asked.file == part.file else columns, labels=judged)
            given = answer(asked)
            write(beside(part, given))
            rows += len(asked)
            if judged:
                said, expected = said + given, expected + (asked.labels or [])
    facts = score_answers(said, expected, labels) if judged else {}
    if out is not None:
        return ResultTable("written", [{"file": str(out), "rows": rows}], facts=facts)
    return ResultTable("answers", kept, hidden=("probabilities",), facts=facts)
