"""`ask`: answers of a pretrained model, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.runtime.output_paths import new_file
from pretune.verbs.option_modes import reads_files, writes_cells
from pretune.verbs.results import Rows
from pretune.verbs.verb import only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run


@verb(
    only(
        "text",
        "pair",
        "label",
        where="to files of rows and --examples",
        when=lambda o: o.examples is not None or reads_files(o),
    ),
    only("shots", "seed", where="with --examples", when=lambda o: o.examples is not None),
    only("calibrate", where="with --answers", when=lambda o: bool(o.answers)),
    only("tokens", where="without --answers, to what a model writes", when=lambda o: not o.answers),
    only("safe_csv", where="with --out that ends in .csv or .tsv", when=writes_cells),
    out=new_file,
)
def ask(
    model: str | Path | Run,
    inputs: Sequence[str | Path] | str | Path = (),
    *,
    cloze: str = "{text} [MASK]",
    answers: Sequence[str] = (),
    examples: str | Path | None = None,
    shots: int = 1,
    calibrate: bool = False,
    tokens: int = 20,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    safe_csv: bool = False,
    partial: bool = False,
) -> Rows:
    """Ask a language model that was trained for no task: what belongs in a gap, with no example, one, or a few.

    A masked language model chooses among words; one that writes ranks answers of any length, or writes its own.

    Parameters
    ----------
    model
        A run or model folder of a masked language model (BERT), or of one that writes (GPT-2).
    inputs
        Texts to ask about, or files of rows: .csv, .tsv, .jsonl or .parquet.
    cloze
        What is asked: {text} (and {pair}) for the text, [MASK] for the answer, as in "{text} It was [MASK]."
    answers
        Answers to choose from, or label:answer; without any, a model that writes gives its own.
    examples
        Labeled rows of which a few are shown before, to a model that writes.
    shots
        How many of them: of each class, where there are answers to choose from.
    calibrate
        Divide by how likely answers are for texts that say nothing.
    tokens
        Of an answer that is written, at most.
    text
        Column of the text.
    pair
        Column of the second text.
    label
        Column of the right answer in examples, and in files, where answers are then judged by it.
    seed
        Which examples are shown, and in which order.
    out
        Write rows and answers to this .csv, .tsv, .jsonl or .parquet file.
    safe_csv
        In .csv and .tsv files, put a single quote before cells that begin with = + - @ or a tab, which spreadsheets take for
        formulas.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> ask("runs/mine", ["a delightful film"], cloze="It was [MASK].", answers=["good", "bad"])[0]["label"]  # doctest: +SKIP
    'good'
    """
    import os
    from contextlib import ExitStack

    from pretune.inference.ask import Question, in_order, judge, make_asker
    from pretune.inference.predict import texts_as_part
    from pretune.inference.prediction_table import Beside, files_as_parts
    from pretune.runtime.errors import PretuneError
    from pretune.text.corpus.table_writer import check_suffix, table_writer
    from pretune.text.examples.few_shot import draw_shots, draw_some
    from pretune.text.examples.labeled import Labeled, read_labeled
    from pretune.verbs.shared_inputs import split_files

    files, texts = split_files(inputs)
    if not files and not texts:
        raise PretuneError("nothing to ask about: give texts or files")
    if out is not None:
        check_suffix(out)
        if Path(out).resolve() in {file.resolve() for file in files}:
            raise PretuneError(f"{out}: is one of the files to read; choose another --out")
    columns = {role: name for role, name in (("text", text), ("pair", pair), ("label", label)) if name}
    if any(":" in answer for answer in answers) and not all(":" in answer for answer in answers):
        raise PretuneError(f"answers {', '.join(answers)}: give all of them as label:answer, or none")
    labels = [answer.partition(":")[0].strip() for answer in answers]
    words = "/".join(answers) if any(":" in answer for answer in answers) else ""
    shown = None
    if examples is not None:
        found = read_labeled(examples, columns)
        shown = in_order((draw_shots if labels else draw_some)(found, shots, seed), seed)
    answer = make_asker(os.fspath(model), Question(cloze, labels, words, shown, calibrate, tokens), partial)
    judged = bool(files and label)
    if not files:
        columns = {"text": "text"}
    elif not judged:
        columns.pop("label", None)
    beside, kept, said, expected, rows = Beside(False, nested=out is None), list[Any](), list[Any](), list[str](), 0
    asked: Labeled | None = None
    with ExitStack() as stack:
        write: Any = kept.extend if out is None else stack.enter_context(table_writer(out, safe=safe_csv))
        for part in files_as_parts(files) if files else [texts_as_part(texts)]:
            # The first rows of a file decide which columns are which.
            asked = read_labeled(part, asked.columns if asked and asked.file == part.file else columns, labels=judged)
            given = answer(asked)
            write(beside(part, given))
            rows += len(asked)
            if judged:
                said, expected = said + given, expected + (asked.labels or [])
    facts = judge(said, expected, labels) if judged else {}
    if out is not None:
        return Rows("written", [{"file": str(out), "rows": rows}], facts=facts)
    return Rows("answers", kept, hidden=("probabilities",), facts=facts)
