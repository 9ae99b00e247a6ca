"""The `predict` verb: predict with fine-tuned models, on texts or files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.option_modes import COLUMNS_RULE, reads_files, writes_cells
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import Options, only, verb

SHOWN = 20  # rows of a file that are printed in the terminal
MEASURED_BYTES = 1 << 18  # the size of files from which on it pays off to find out which engine is the faster one


def has_classes(o: Options) -> bool:
    """Return whether the model in the options `o` predicts classes, and therefore class probabilities."""
    from pretune.inference.predict import find_task
    from pretune.verbs.shared_inputs import split_models

    _, task = find_task(split_models(o.model, o.inputs)[0][0], o.task)
    return bool(task.labels) and task.output_per != "text"


def has_threshold(o: Options) -> bool:
    """Return whether the model in the options `o` predicts a label if its probability is above a threshold.

    This holds for multi-label and for binary classification.
    """
    from pretune.inference.predict import find_task
    from pretune.verbs.shared_inputs import split_models

    _, task = find_task(split_models(o.model, o.inputs)[0][0], o.task)
    return task.has_option("threshold") and (task.multi_label or len(task.labels) == 2)


@verb(
    COLUMNS_RULE,
    only("score", where="to files with labels", when=reads_files),
    only("label", where="with --score", when=lambda o: o.score),
    only("probabilities", where="to tasks with classes", when=has_classes),
    only("threshold", where="to two classes or several labels per text", when=has_threshold),
    only(
        "engine",
        where="to one process, without --executor ray",
        when=lambda o: o.processes == 1 and o.executor == "local",
    ),
    only("safe_csv", where="with --out that ends in .csv or .tsv", when=writes_cells),
    common=("inputs", "text", "pair", "probabilities", "out", "processes"),
    out=check_new_file,
)
def predict(
    model: opt.FineTunedModels,
    inputs: opt.Paths = (),
    *,
    text: opt.Text = None,
    pair: opt.Pair = None,
    task: str | None = None,
    language: opt.TextLanguage = None,
    label: str | None = None,
    columns: opt.Columns = None,
    probabilities: bool = False,
    threshold: float | None = None,
    score: bool = False,
    out: str | Path | None = None,
    safe_csv: opt.SafeCsv = False,
    processes: opt.Processes = 1,
    engine: opt.Engine = "auto",
    executor: opt.Executor = "local",
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Predict with a fine-tuned model, or with the averaged predictions of several, one prediction per text or row, in order.

    Predictions for a file are added to its rows as new columns, which are named predicted_… if the file has such a column already.
    A row with an empty text gets empty cells, and the number of such rows is reported.

    Parameters
    ----------
    inputs
        More runs for the same task, followed by texts or by files in the format that the model was fine-tuned on: .csv, .tsv, .jsonl,
        or .parquet; for tagging also CoNLL columns or .conllu; for question answering also SQuAD's .json.
    task
        Task to predict, if the model was trained for several.
    label
        Column with the label, for --score.
    probabilities
        Add one column per class with its probability.
    threshold
        Minimum probability at which a label, or the second of two classes, is predicted, instead of the model's own
        threshold.
    score
        Compare the predictions with the labels in the files, and report the metrics of each run and of their ensemble.
    out
        Write rows and predictions to this .csv, .tsv, .jsonl, or .parquet file; for tagging also .conll.

    Examples
    --------
    >>> predict("runs/task", ["a delightful film"])[0]["label"]  # doctest: +SKIP
    'positive'
    >>> predict(["runs/a", "runs/b"], "reviews.csv", out="answers.csv")  # doctest: +SKIP
    """
    from contextlib import ExitStack

    from pretune.inference.ensemble import predict_excerpts, shared_task, with_threshold
    from pretune.inference.predict import blank_predictions, report_blank, texts_as_excerpt
    from pretune.inference.prediction_table import PredictionColumns, ScoreTable, read_file_excerpts
    from pretune.metrics import positive_class
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info, progress
    from pretune.text.corpus.table_writer import check_table_suffix, table_writer
    from pretune.verbs.shared_inputs import columns_by_role, split_files, split_models, with_engine

    runs, rest = split_models(model, inputs)
    files, texts = split_files(rest)
    if not rest:
        raise PretuneError("no inputs were given; give texts or files")
    if out is not None:
        check_table_suffix(out, tagged=True)
        if Path(out).resolve() in {file.resolve() for file in files}:
            raise PretuneError(f"{out}: --out is also an input file; choose another --out")
    if processes < 1:
        raise PretuneError(f"--processes {processes}: the number of processes must be at least 1")
    named = columns_by_role(columns, text=text, pair=pair, label=label)
    parts = read_file_excerpts(files, shared_task(runs, task)) if files else [texts_as_excerpt(texts)]
    computing: list[Any] = list(runs)
    if processes == 1 and executor == "local":
        large = sum(file.stat().st_size for file in files) >= MEASURED_BYTES
        computing = [with_engine(run, engine, large, ignore_mismatched) for run in runs]
    answered = predict_excerpts(
        computing,
        parts,
        named if files else {"text": "text"},
        answered=score,
        processes=processes,
        ignore_mismatched=ignore_mismatched,
        name=task,
        executor=executor,
        language=language,
    )
    beside, scores = PredictionColumns(probabilities, nested=out is None), ScoreTable(runs, task)
    kept: list[dict[str, Any]] = []
    rows = truncated = blank = 0
    with ExitStack() as stack:
        write: Any = kept.extend if out is None else stack.enter_context(table_writer(out, safe=safe_csv))
        bar = stack.enter_context(progress("predicting"))
        for part, answers in answered:
            if threshold is not None:
                answers = with_threshold(shared_task(runs, task), answers, threshold)
            write(beside(part, blank_predictions(answers.combined, answers.blank), answers.lines))
            if score:
                scores.add(part.file, answers)
            rows, truncated = rows + len(part.rows), truncated + answers.truncated
            blank += len(answers.blank)
            bar.update(rows, f"{rows:,} rows")
        if blank == rows and not files:
            empty = "the text is empty" if rows == 1 else "all texts are empty"
            raise PretuneError(f"{empty}, so there is nothing to predict; give texts with words")
    report_blank(blank, rows)
    if truncated:
        log_info(f"{truncated} of {rows} texts were truncated to the model's maximum length")
    facts: dict[str, Any] = {"scores": scores.table()} if score else {}
    if score and (positive := positive_class(shared_task(runs, task))) is not None:
        facts["positive_class"] = positive
    if out is not None:
        return ResultTable("written", [{"file": str(out), "rows": rows}], facts=facts)
    return ResultTable(
        "predictions",
        kept,
        hidden=("probabilities", "entities", "mentions", "candidates"),
        shown=SHOWN if files else None,
        facts=facts,
    )
