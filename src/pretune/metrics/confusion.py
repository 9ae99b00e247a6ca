"""Classification metrics computed from a confusion matrix, which is a sum over examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

# Takes the confusion matrix (labels, labels), with the true labels in rows, and the labels in order.
Metric = Callable[[Array, list[str]], float]


def confusion_metric(name: str, metric: Metric, expected: Sequence[str], given: Sequence[str]) -> AdditiveMetrics:
    """Return a metric of a confusion matrix as a sum over examples.

    >>> confusion_metric("accuracy", accuracy, ["a", "b"], ["a", "a"]).whole()
    {'accuracy': 0.5}
    """
    labels = sorted({*expected, *given})
    number = {label: place for place, label in enumerate(labels)}
    codes = np.array([number[a] * len(labels) + number[b] for a, b in zip(expected, given, strict=True)])
    there, column = np.unique(codes, return_inverse=True)  # with many labels, most pairs never occur
    values = np.zeros((len(codes), len(there)))
    values[np.arange(len(codes)), column] = 1

    def finish(sums: Array) -> dict[str, float]:
        counts = np.zeros(len(labels) ** 2)
        counts[there] = sums
        return {name: metric(counts.reshape(len(labels), -1), labels)}

    return AdditiveMetrics(values, finish)


def accuracy(counts: Array, labels: list[str]) -> float:
    """Return the share of correct predictions."""
    return float(np.trace(counts) / counts.sum())


def f1(counts: Array, labels: list[str]) -> float:
    """Return the F1 of the positive class: the one named "1", or the last in alphabetical order."""
    positive = "1" if set(labels) <= {"0", "1"} else labels[-1]
    return f1_of(counts, np.array([label == positive for label in labels]))


def f1_of_true(counts: Array, labels: list[str]) -> float:
    """Return the F1 of the classes named "1" or "true"."""
    return f1_of(counts, np.array([label in ("1", "true") for label in labels]))


def macro_f1(counts: Array, labels: list[str]) -> float:
    """Return the mean F1 over the classes that occur."""
    there = np.flatnonzero(counts.sum(0) + counts.sum(1))
    return float(np.mean([f1_of(counts, np.arange(len(labels)) == place) for place in there]))


def f1_of(counts: Array, positive: Array) -> float:
    """Return the F1 of several classes taken as one; 0 if they do not occur."""
    both = counts[positive].sum() + counts[:, positive].sum()
    return float(2 * counts[positive][:, positive].sum() / both) if both else 0.0


def matthews(counts: Array, labels: list[str]) -> float:
    """Return the Matthews correlation; 0 if all labels or all predictions are equal."""
    total, given, wanted = counts.sum(), counts.sum(0), counts.sum(1)
    spread = np.sqrt((total**2 - (given**2).sum()) * (total**2 - (wanted**2).sum()))
    return float((total * np.trace(counts) - given @ wanted) / spread) if spread else 0.0
