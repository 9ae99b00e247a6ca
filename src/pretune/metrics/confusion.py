"""Classification metrics computed from a confusion matrix, which is a sum over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

# Takes the confusion matrix (labels, labels), with the true labels in rows, and the labels in order.
Metric = Callable[[Array, list[str]], float]


def confusion_metric(name: str, metric: Metric, expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return a metric called `name` that `metric` computes from the confusion matrix of expected and predicted labels.

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
    """Return the F1 of the positive class ("1" if labels are 0 and 1, else the last label) from a confusion matrix."""
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
    """Return the F1 of the classes in the mask `positive` against the others; 0 if none is expected or predicted."""
    both = counts[positive].sum() + counts[:, positive].sum()
    return float(2 * counts[positive][:, positive].sum() / both) if both else 0.0


def matthews(counts: Array, labels: list[str]) -> float:
    """Return the Matthews correlation of a confusion matrix; 0 if only one label is expected or predicted."""
    total, predicted, expected = counts.sum(), counts.sum(0), counts.sum(1)
    spread = np.sqrt((total**2 - (predicted**2).sum()) * (total**2 - (expected**2).sum()))
    return float((total * np.trace(counts) - predicted @ expected) / spread) if spread else 0.0
