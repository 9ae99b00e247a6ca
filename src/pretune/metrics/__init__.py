"""Metrics, one file per kind; a task has its own, and these functions compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np


def score(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """Return the metrics of a task for its answers to some examples, the primary metric first.

    >>> from pretune.objectives.tasks.classify import Classify
    >>> from pretune.text.examples.labeled import LabeledRows
    >>> rows = LabeledRows("x.csv", {}, ["…", "…"], labels=["a", "b"])
    >>> score(Classify(labels=("a", "b")), [{"label": "a"}, {"label": "a"}], rows)["accuracy"]
    0.5
    """
    found: dict[str, float] = task.metrics(answers, examples)
    first = {task.primary_metric: found[task.primary_metric]} if task.primary_metric in found else {}
    return {**first, **found}


def positive_class(task: Any) -> str | None:
    """Return the class that `f1` is of; None for a task that does not have two classes."""
    return str(task.labels[1]) if task.single_label and len(task.labels) == 2 else None


def bootstrap_scores(
    task: Any, answers: Sequence[dict[str, Any]], examples: Any, chance: np.random.Generator, rounds: int
) -> Iterator[dict[str, float]]:
    """Yield the metrics of bootstrap samples: as many examples, drawn with replacement; for `rank`, as many queries."""
    parts = task.metric_sums(answers, examples)
    if parts is not None:
        units = len(parts.values)
        yield from (parts.of(chance.integers(0, units, units)) for _ in range(rounds if units else 0))
        return
    for _ in range(rounds):
        rows = chance.integers(0, len(answers), len(answers)).tolist()
        yield score(task, [answers[row] for row in rows], examples.take(rows))


def majority_score(task: Any, learned: Any, judged: Any) -> float:
    """Return the primary metric of the majority-class baseline; 0 for a task that has none."""
    found = task.majority_answers(learned, judged)
    return 0.0 if found is None else score(task, found[1], judged)[task.primary_metric]
