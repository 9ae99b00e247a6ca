"""Compute the metrics of tasks, with one module per kind of task; each task names the metrics that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np


def score(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """Return the metrics of a task, given a model's predictions for labeled examples; the primary metric comes first.

    `answers` has one prediction per example, as a dictionary whose keys depend on the task, such as `label`.

    >>> from pretune.objectives.tasks.classify import Classify
    >>> from pretune.text.examples.labeled import LabeledRows
    >>> rows = LabeledRows("x.csv", {}, ["…", "…"], labels=["a", "b"])
    >>> score(Classify(labels=("a", "b")), [{"label": "a"}, {"label": "a"}], rows)["accuracy"]
    0.5
    """
    metrics: dict[str, float] = task.metrics(answers, examples)
    first = {task.primary_metric: metrics[task.primary_metric]} if task.primary_metric in metrics else {}
    return {**first, **metrics}


def positive_class(task: Any) -> str | None:
    """Return the positive class of a binary classification task, whose F1 is reported as `f1`; None for other tasks."""
    return str(task.labels[1]) if task.single_label and len(task.labels) == 2 else None


def bootstrap_scores(
    task: Any, answers: Sequence[dict[str, Any]], examples: Any, chance: np.random.Generator, rounds: int
) -> Iterator[dict[str, float]]:
    """Yield the metrics of predictions (`answers`) on each of `rounds` bootstrap samples of the examples.

    The samples are drawn with replacement by the random generator `chance`.
    """
    sums = task.metric_sums(answers, examples)
    if sums is not None:
        units = len(sums.values)
        yield from (sums.compute(chance.integers(0, units, units)) for _ in range(rounds if units else 0))
        return
    for _ in range(rounds):
        rows = chance.integers(0, len(answers), len(answers)).tolist()
        yield score(task, [answers[row] for row in rows], examples.take(rows))


def majority_score(task: Any, train: Any, test: Any) -> float:
    """Return the primary metric on `test` of a baseline that always predicts the most frequent answer in `train`.

    The metric is 0 for a task without such a baseline.
    """
    baseline = task.majority_answers(train, test)
    return 0.0 if baseline is None else score(task, baseline[1], test)[task.primary_metric]
