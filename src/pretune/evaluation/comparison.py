"""Comparison of two evaluations of one suite with paired bootstrap tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretune.evaluation.paired_bootstrap import compare, compare_additive
from pretune.evaluation.suites.declaration import SuiteTask, find_suite
from pretune.evaluation.suites.official_metrics import METRICS, PARTS
from pretune.evaluation.suites.suite_runner import ASKED, RESULT, read_answers, read_lines, rows_path
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_checksummed_json


def compare_evaluations(first: Path, second: Path) -> list[dict[str, Any]]:
    """Compare two evaluation folders; return a row per task and metric with difference, interval and p-value.

    The difference is the score of `second` minus that of `first`.
    """
    asked = [_asked(folder) for folder in (first, second)]
    if asked[0]["suite"] != asked[1]["suite"]:
        raise PretuneError(
            f"{first} is an evaluation of {asked[0]['suite']} and {second} of {asked[1]['suite']}; compare two evaluations of the same suite"
        )
    made = []
    for name, task in find_suite(asked[0].get("suite_file") or asked[0]["suite"]).tasks.items():
        if not all((folder / name / RESULT).is_file() for folder in (first, second)):
            continue
        rows = read_lines(rows_path(first, name, task.scored))
        if rows != read_lines(rows_path(second, name, task.scored)):
            raise PretuneError(
                f"{task.title}: {first} and {second} were scored on different rows; evaluate both on the same files"
            )
        ours, theirs = (_each_seed(folder, task) for folder in (first, second))
        for metric in task.metrics:
            with _intact(first, second, task):
                if metric in PARTS:
                    sums = [[PARTS[metric](rows, answers) for answers in side] for side in (ours, theirs)]
                    found = compare_additive(metric, sums[0], sums[1])
                else:
                    found = compare(METRICS[metric], rows, ours, theirs)
            made.append(
                {
                    "task": task.title,
                    "metric": metric,
                    "first": found.first,
                    "second": found.second,
                    "difference": found.difference,
                    "ci_low": found.low,
                    "ci_high": found.high,
                    "p": found.p,
                }
            )
    if not made:
        raise PretuneError(f"{first} and {second} have no finished task in common; finish the same task in both")
    return made


@contextmanager
def _intact(first: Path, second: Path, task: SuiteTask) -> Iterator[None]:
    """Convert errors that damaged files cause in the `with` block to one error that names both evaluation folders.

    `task` is the task whose rows and answers are read.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PretuneError(
            f"{first} or {second}: the rows or answers of {task.title} are damaged ({error!r}); evaluate again"
        ) from error


def _asked(folder: Path) -> dict[str, Any]:
    path = folder / ASKED
    if not path.is_file():
        raise PretuneError(
            f"{folder}: not an evaluation of a suite ({ASKED} is missing); give the folder that `pretune evaluate` wrote"
        )
    return read_checksummed_json(path, "the settings of an evaluation")


def _each_seed(folder: Path, task: SuiteTask) -> list[list[dict[str, Any]]]:
    seeds = folder / (task.uses_model_of or task.name) / "seeds"
    found = sorted(seeds.glob(f"*/answers/{task.name}.{task.scored}.jsonl"))
    return [read_answers(path.parent.parent, task.name, task.scored) for path in found]
