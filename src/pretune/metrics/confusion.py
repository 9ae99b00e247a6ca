"""Metrics of labels as sums over examples: how often each label was given where each was right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pretune.metrics.additive import Array, Parts

Metric = Callable[
    [Array, list[str]], float
]  # of (labels, labels) counts, the right ones in rows, and the labels in order


def cell_parts(name: str, metric: Metric, expected: Sequence[str], given: Sequence[str]) -> Parts:
    """A metric of labels.

    >>> cell_parts("accuracy", accuracy, ["a", "b"], ["a", "a"]).whole()
    {'accuracy': 0.5}
    """
    labels = sorted({*expected, *given})
    number = {label: place for place, label in enumerate(labels)}
    codes = np.array([number[a] * len(labels) + number[b] for a, b in zip(expected, given, strict=True)])
    there, column = np.unique(codes, return_inverse=True)  # most pairs of many labels never come
    values = np.zeros((len(codes), len(there)))
    values[np.arange(len(codes)), column] = 1

    def finish(sums: Array) -> dict[str, float]:
        counts = np.zeros(len(labels) ** 2)
        counts[there] = sums
        return {name: metric(counts.reshape(len(labels), -1), labels)}

    return Parts(values, finish)


def accuracy(counts: Array, labels: list[str]) -> float:
    """The share of right answers."""
    return float(np.trace(counts) / counts.sum())


def f1(counts: Array, labels: list[str]) -> float:
    """Of the class that is called 1, or of the last by name."""
    positive = "1" if set(labels) <= {"0", "1"} else labels[-1]
    return f1_of(counts, np.array([label == positive for label in labels]))


def f1_of_right(counts: Array, labels: list[str]) -> float:
    """Of answers that are called right: 1, or true."""
    return f1_of(counts, np.array([label in ("1", "true") for label in labels]))


def macro_f1(counts: Array, labels: list[str]) -> float:
    """The mean over the classes that there are."""
    there = np.flatnonzero(counts.sum(0) + counts.sum(1))
    return float(np.mean([f1_of(counts, np.arange(len(labels)) == place) for place in there]))


def f1_of(counts: Array, positive: Array) -> float:
    """Of some classes taken as one; 0 where there is none of it."""
    both = counts[positive].sum() + counts[:, positive].sum()
    return float(2 * counts[positive][:, positive].sum() / both) if both else 0.0


def matthews(counts: Array, labels: list[str]) -> float:
    """The correlation of two sets of indicators; 0 where one of them says nothing."""
    total, given, wanted = counts.sum(), counts.sum(0), counts.sum(1)
    spread = np.sqrt((total**2 - (given**2).sum()) * (total**2 - (wanted**2).sum()))
    return float((total * np.trace(counts) - given @ wanted) / spread) if spread else 0.0
