"""`predict`, `fill` and `embed`: using models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.runtime.output_paths import new_file
from pretune.verbs.option_modes import FILES, reads_files, writes_cells
from pretune.verbs.results import Rows
from pretune.verbs.verb import Options, only, verb

if TYPE_CHECKING:
    from pretune.training.run_folder import Run

    Runs = Sequence[str | Path | Run]

SHOWN = 20  # rows of a file that people see


def has_classes(o: Options) -> bool:
    """Return whether a model answers with classes, which have probabilities."""
    from pretune.inference.predict import task_of
    from pretune.verbs.shared_inputs import split_runs

    _, task = task_of(split_runs(o.model, o.inputs)[0][0], o.task)
    return bool(task.labels) and task.kind != "generate"


@verb(
    FILES,
    only("score", where="to files that have the right answers", when=reads_files),
    only("label", where="with --score", when=lambda o: o.score),
    only("probabilities", where="to tasks with classes", when=has_classes),
    only("safe_csv", where="with --out that ends in .csv or .tsv", when=writes_cells),
    out=new_file,
)
def predict(
    model: str | Path | Run | Runs,
    inputs: Sequence[str | Path] | str | Path = (),
    *,
    text: str | None = None,
    pair: str | None = None,
    task: str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    probabilities: bool = False,
    score: bool = False,
    out: str | Path | None = None,
    safe_csv: bool = False,
    processes: int = 1,
    engine: Literal["local", "ray"] = "local",
    partial: bool = False,
) -> Rows:
    """Answers of a fine-tuned model, or the mean of several models': as many as there are texts or rows, in order.

    Rows of a file keep all their columns and get the answer's beside them; where the file has such a column already, the
    answer's is called predicted_…. A row whose text is empty has no answer: its cells stay empty, and such rows are counted.

    Parameters
    ----------
    model
        A fine-tuned run or model folder.
    inputs
        Further runs for the same task, then texts, or files of the kind that the model was fine-tuned on: .csv, .tsv, .jsonl
        or .parquet; of words CoNLL's columns or .conllu; of questions SQuAD's .json.
    text
        Column of the text: words, questions.
    pair
        Column of the second text: passages.
    task
        Which of its tasks, for a model that was trained for several.
    label
        Column of the right answer, for --score.
    columns
        Columns of what else the task reads, e.g. --columns.choices options.
    probabilities
        With a column for the probability of each class.
    score
        The files also have the right answers: compare, and say how good each run is, and all together.
    out
        Write rows and answers to this .csv, .tsv, .jsonl or .parquet file; of tagged words a .conll file too.
    safe_csv
        In .csv and .tsv files, put a single quote before cells that begin with = + - @ or a tab, which spreadsheets take for
        formulas.
    processes
        Share the rows out to so many processes, on a CPU.
    engine
        This machine (local), or a Ray cluster (ray): that of RAY_ADDRESS, with the runs where all its machines see them.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> predict("runs/task", ["a delightful film"])[0]["label"]  # doctest: +SKIP
    'positive'
    >>> predict(["runs/a", "runs/b"], "reviews.csv", out="answers.csv")  # doctest: +SKIP
    """
    from contextlib import ExitStack

    from pretune.inference.ensemble import answer_parts, same_task
    from pretune.inference.predict import leave_blank, say_blank, texts_as_part
    from pretune.inference.prediction_table import Beside, Scores, files_as_parts
    from pretune.metrics import positive_class
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import progress, say
    from pretune.text.corpus.table_writer import check_suffix, table_writer
    from pretune.verbs.shared_inputs import name_columns, split_files, split_runs

    runs, rest = split_runs(model, inputs)
    files, texts = split_files(rest)
    if not rest:
        raise PretuneError("nothing to answer: give texts or files")
    if out is not None:
        check_suffix(out)
        if Path(out).resolve() in {file.resolve() for file in files}:
            raise PretuneError(f"{out}: is one of the files to read; choose another --out")
    if processes < 1:
        raise PretuneError(f"--processes {processes}: at least one process has to answer")
    named = name_columns(columns, text=text, pair=pair, label=label)
    parts = files_as_parts(files, same_task(runs, task)) if files else [texts_as_part(texts)]
    answered = answer_parts(
        runs,
        parts,
        named if files else {"text": "text"},
        answered=score,
        processes=processes,
        partial=partial,
        name=task,
        engine=engine,
    )
    beside, scores = Beside(probabilities, nested=out is None), Scores(runs, task)
    kept: list[dict[str, Any]] = []
    rows = truncated = blank = 0
    with ExitStack() as stack:
        write: Any = kept.extend if out is None else stack.enter_context(table_writer(out, safe=safe_csv))
        bar = stack.enter_context(progress("predicting"))
        for part, answers in answered:
            write(beside(part, leave_blank(answers.together, answers.blank), answers.lines))
            if score:
                scores.add(part.file, answers)
            rows, truncated = rows + len(part.rows), truncated + answers.truncated
            blank += len(answers.blank)
            bar.update(rows, f"{rows:,} rows")
        if blank == rows and not files:
            raise PretuneError(
                "nothing to answer: the text is empty" if rows == 1 else "nothing to answer: all texts are empty"
            )
    say_blank(blank, rows)
    if truncated:
        say(f"{truncated} of {rows} texts are longer than the model takes and were cut")
    facts: dict[str, Any] = {"scores": scores.table()} if score else {}
    if score and (positive := positive_class(same_task(runs, task))) is not None:
        facts["f1_is_of"] = positive
    if out is not None:
        return Rows("written", [{"file": str(out), "rows": rows}], facts=facts)
    return Rows(
        "predictions",
        kept,
        hidden=("probabilities", "entities", "candidates"),
        shown=SHOWN if files else None,
        facts=facts,
    )


@verb(
    only("top", where="without --mask-rate", when=lambda o: o.mask_rate is None),
    only("seed", where="with --mask-rate", when=lambda o: o.mask_rate is not None),
)
def fill(
    model: str | Path | Run,
    texts: Sequence[str] = (),
    *,
    top: int = 5,
    mask_rate: float | None = None,
    seed: int = 0,
    partial: bool = False,
) -> Rows:
    """Fill [MASK]s in texts with what a masked language model expects there.

    Parameters
    ----------
    model
        A run or model folder with a masked-language-model head.
    texts
        Texts with one or several [MASK]s.
    top
        How many candidates to show for each.
    mask_rate
        Hide this share of each text's words and show original, masked and restored text instead.
    seed
        Which words to hide.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> fill("runs/mine", ["The capital of France is [MASK]."])[0]["filled"]  # doctest: +SKIP
    """
    import os

    from pretune.inference.fill import Filler
    from pretune.runtime.errors import PretuneError

    if not texts:
        raise PretuneError("nothing to fill: give texts")
    filler = Filler.load(os.fspath(model), partial)
    if mask_rate is not None:
        return Rows("restored", [filler.restore(text, mask_rate, seed) for text in texts])
    rows = []
    for text in texts:
        found = filler.fill(text, top)
        for number, gap in enumerate(found["gaps"], 1):
            best = {f"{place}.": f"{c['token']} {c['probability']:.2f}" for place, c in enumerate(gap, 1)}
            rows.append({"text": text, "gap": number, **best, "filled": found["filled"], "candidates": gap})
    return Rows("fills", rows, hidden=("candidates",))


@verb(only("text", where="to files of rows, not to texts", when=reads_files), out=new_file)
def embed(
    model: str | Path | Run,
    inputs: Sequence[str | Path] | str | Path = (),
    *,
    text: str | None = None,
    pooling: str | None = None,
    layer: int = -1,
    prompt: str | None = None,
    prompt_name: str | None = None,
    out: str | Path | None = None,
    partial: bool = False,
) -> Rows:
    """Compute a vector for each text, in order.

    A model that was trained with contrast, or comes from sentence-transformers, does so as it was trained to: with its
    pooling, normalization, prompts and maximum length.

    Parameters
    ----------
    model
        A run or model folder.
    inputs
        Texts to embed, or files of rows: .csv, .tsv, .jsonl or .parquet.
    text
        Column of the text.
    pooling
        Another pooling than the model's own, which is the mean unless it was trained for vectors: mean, max, start (the
        first token), last, mean_sqrt_len or weighted_mean; several are joined with +.
    layer
        Which layer to pool: 0 are the embeddings, -1 is the top layer.
    prompt
        A text to put before each text, instead of the model's default prompt.
    prompt_name
        Which of the model's own prompts to put before each text, such as query.
    out
        Write the vectors to this .npy file instead of showing them.
    partial
        Go on where keys or tensors are unknown (left out), or tensors missing or of another shape (left random).

    Examples
    --------
    >>> len(embed("runs/mine", ["one", "two"]))  # doctest: +SKIP
    2
    """
    import io
    import os

    import numpy as np

    from pretune.inference.embed import embed_texts
    from pretune.runtime.atomic_io import write_bytes
    from pretune.runtime.errors import PretuneError
    from pretune.text.examples.labeled import read_labeled
    from pretune.verbs.shared_inputs import split_files

    files, texts = split_files(inputs)
    for file in files:
        texts += read_labeled(file, {"text": text} if text else {}, labels=False).texts
    if not texts:
        raise PretuneError("nothing to embed: give texts or files")
    vectors = embed_texts(os.fspath(model), texts, pooling, layer, partial, prompt, prompt_name)
    if out is not None:
        buffer = io.BytesIO()
        np.save(buffer, vectors)
        write_bytes(Path(out), buffer.getvalue())
        return Rows("written", [{"file": str(out), "vectors": len(vectors), "width": vectors.shape[1]}])
    return Rows("vectors", [{"text": t, "vector": v.tolist()} for t, v in zip(texts, vectors, strict=True)])
