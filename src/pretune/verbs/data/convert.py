"""The `convert` verb: write the official files of a suite as tables with one row per example."""

from __future__ import annotations

from pathlib import Path

from pretune.runtime.output_paths import check_new_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(out=check_new_folder)
def convert(
    suite: str, *, data: opt.SuiteFolder, out: str | Path, tasks: opt.Tasks = (), allow_incomplete: bool = False
) -> ResultTable:
    """Convert the official files of a suite to tables, one per task and split, to train several tasks at once.

    The tables are OUT/TASK.SPLIT.jsonl. A column keeps its name in the suite, as in question, context and answer of decaNLP;
    columns without a name, or joined from several, are named text, pair and label.

    Parameters
    ----------
    suite
        Suite: glue, decanlp, …, or a .yaml file.
    out
        Folder for the tables.
    allow_incomplete
        Accept files with fewer rows than the official ones.

    Examples
    --------
    >>> convert("decanlp", data="official/", out="decanlp/")[0]  # doctest: +SKIP
    {'task': 'SQuAD', 'split': 'train', 'rows': 87599, 'file': 'decanlp/squad.train.jsonl'}
    """
    from pretune.evaluation.suites.declaration import find_suite
    from pretune.evaluation.suites.suite_runner import write_lines
    from pretune.runtime.errors import PretuneError

    chosen = find_suite(suite).select_tasks(list(tasks))
    written = []
    for name, task in chosen.tasks.items():
        for split in task.files:
            if task.find_files(split, Path(data)):
                rows = task.read(split, Path(data), allow_incomplete=allow_incomplete)
                file = Path(out) / f"{name}.{split}.jsonl"
                write_lines(file, map(task.named_columns, rows.rows))
                written.append({"task": task.title, "split": split, "rows": len(rows), "file": str(file)})
    if not written:
        raise PretuneError(f"{data}: no files of {chosen.title} were found; give the folder with its official files")
    return ResultTable("tables", written)
