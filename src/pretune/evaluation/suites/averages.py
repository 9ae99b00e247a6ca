"""Averages over the tasks of a suite, as its authors or published papers define them; missing tasks are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from pretune.evaluation.suites.declaration import Suite

Scores = Mapping[str, Mapping[str, float]]  # task → metric → score


@dataclass(frozen=True)
class SuiteAverage:
    """A mean, or a sum, over columns of a benchmark suite's results table.

    `of` is the number of all columns, and `missing` the names of the columns without a score, which are not in the
    mean.
    """

    value: float
    of: int  # all columns, the missing ones included
    missing: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return a suffix for an average with missing columns, such as " (3 of 4)"; "" if no column is missing."""
        return f" ({self.of - len(self.missing)} of {self.of})" if self.missing else ""


def average(suite: Suite, columns: Sequence[Any], scores: Scores) -> SuiteAverage | None:
    """Return the mean over columns of a suite's results table; None if all of them are missing.

    `scores` maps task → metric → value. A column is a task (the mean of its metrics and languages), TASK.METRIC, or a
    list of these that counts as one column.
    """
    found = {str(column): _column(suite, column, scores) for column in columns}
    there = [value for value in found.values() if value is not None]
    missing = tuple(name for name, value in found.items() if value is None)
    return SuiteAverage(mean(there), len(found), missing) if there else None


def _column(suite: Suite, column: Any, scores: Scores) -> float | None:
    """Return the score of a column (a task, TASK.METRIC, or a list of these); None if a part of it is missing.

    `scores` maps task → metric → value.
    """
    if isinstance(column, list):
        parts = [_column(suite, part, scores) for part in column]
        there = [part for part in parts if part is not None]
        return mean(there) if there and len(there) == len(parts) else None
    name, _, metric = column.partition(".")
    tongues = [task.name for task in suite.tasks.values() if task.language and task.like == name]
    if tongues:
        return _column(suite, [f"{tongue}.{metric}" if metric else tongue for tongue in tongues], scores)
    if name not in scores:
        return None
    return scores[name][metric] if metric else mean(scores[name].values())


def averages(suite: Suite, scores: Scores) -> dict[str, SuiteAverage]:
    """Return the averages and sums that a suite's YAML file declares, by name; those without any score are left out."""
    found = {name: average(suite, columns, scores) for name, columns in {**suite.averages, **suite.sums}.items()}
    made = {name: value for name, value in found.items() if value is not None}
    return {
        name: replace(a, value=a.value * (a.of - len(a.missing))) if name in suite.sums else a
        for name, a in made.items()
    }


def group_averages(suite: Suite, scores: Scores) -> dict[str, SuiteAverage]:
    """Return the mean score of each group of tasks in a suite, such as entailment or reading, by group."""
    groups: dict[str, list[str]] = {}
    for task in suite.tasks.values():
        if task.group and not task.categories:
            groups.setdefault(task.group, []).append(task.name)
    found = {group: average(suite, names, scores) for group, names in groups.items()}
    return {group: value for group, value in found.items() if value is not None}
