"""Compute classification metrics from a confusion matrix, which is a sum over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

# Takes the confusion matrix (labels, labels), with the true labels in rows, and the labels in order.
Metric = Callable[[Array, list[str]], float]


def confusion_metric(name: str, metric: Metric, expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return a metric called `name`, which the function `metric` computes from a confusion matrix.

    `metric` gets the confusion matrix of the expected and predicted labels and the list of all labels.

    >>> confusion_metric("accuracy", accuracy, ["a", "b"], ["a", "a"]).compute()
    {'accuracy': 0.5}
    """
    labels = sorted({*expected, *predicted})
    index = {label: i for i, label in enumerate(labels)}
    cells = np.array([index[a] * len(labels) + index[b] for a, b in zip(expected, predicted, strict=True)])
    occurring, column = np.unique(cells, return_inverse=True)  # with many labels, most pairs never occur
    values = np.eye(len(occurring))[column]

    def from_sums(sums: Array) -> dict[str, float]:
        counts = np.zeros(len(labels) ** 2)
        counts[occurring] = sums
        return {name: metric(counts.reshape(len(labels), -1), labels)}

    return AdditiveMetrics(values, from_sums)


def accuracy(counts: Array, labels: list[str]) -> float:
    """Return the share of correct predictions, given the confusion matrix `counts`; `labels` are not used."""
    return float(np.trace(counts) / counts.sum())


def f1(counts: Array, labels: list[str]) -> float:
    """Return the F1 of the positive class, given the confusion matrix `counts`.

    The positive class is the label "1" if the labels are 0 and 1, else the last label.
    """
    positive = "1" if set(labels) <= {"0", "1"} else labels[-1]
    return f1_of(counts, np.array([label == positive for label in labels]))


def f1_of_true(counts: Array, labels: list[str]) -> float:
    """Return the F1 of the class with the label "1" or "true", given the confusion matrix `counts`."""
    return f1_of(counts, np.array([label in ("1", "true") for label in labels]))


def macro_f1(counts: Array, labels: list[str]) -> float:
    """Return the mean F1 over the classes that were expected or predicted, given the confusion matrix `counts`."""
    occurring = np.flatnonzero(counts.sum(0) + counts.sum(1))
    return float(np.mean([f1_of(counts, np.arange(len(labels)) == label) for label in occurring]))


def f1_of(counts: Array, positive: Array) -> float:
    """Return the F1 of a group of classes against all others, given the confusion matrix `counts`.

    `positive` is a mask of the classes in the group. F1 is 0 if no class in the group is expected or predicted.
    """
    both = counts[positive].sum() + counts[:, positive].sum()
    return float(2 * counts[positive][:, positive].sum() / both) if both else 0.0


def matthews(counts: Array, labels: list[str]) -> float:
    """Return the Matthews correlation, given the confusion matrix `counts`; the list `labels` is not used.

    It is 0 if all expected labels or all predicted labels are equal.
    """
    total, predicted, expected = counts.sum(), counts.sum(0), counts.sum(1)
    spread = np.sqrt((total**2 - (predicted**2).sum()) * (total**2 - (expected**2).sum()))
    return float((total * np.trace(counts) - predicted @ expected) / spread) if spread else 0.0
