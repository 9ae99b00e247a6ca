"""How good a classifier is: accuracy, F1, Matthews correlation.

Defined as scikit-learn defines them, and counted here: intervals ask for them hundreds of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def classification_metrics(
    expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Accuracy, Matthews correlation and F1: of the second class where there are two, else the mean over classes.

    >>> classification_metrics(["a", "b"], ["a", "b"], ["a", "b"])["accuracy"]
    1.0
    """
    counts = confusion(expected, predicted, labels)
    right, given, wanted = np.diag(counts), counts.sum(0), counts.sum(1)
    total = counts.sum()
    f1 = 2 * right / np.maximum(1, given + wanted)
    # The correlation of two sets of indicators; 0 where one of them says nothing.
    spread = np.sqrt(float(total**2 - (given**2).sum())) * np.sqrt(float(total**2 - (wanted**2).sum()))
    return {
        "accuracy": float(right.sum() / max(1, total)),
        "f1": float(f1[1] if len(labels) == 2 else f1[: len(labels)].mean()),
        "matthews": float((total * right.sum() - (given * wanted).sum()) / spread) if spread else 0.0,
    }


def confusion(expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Array:
    """(labels, labels) how often each was answered, in columns, where each was right, in rows; unknown ones come last.

    >>> confusion(["a", "b"], ["a", "a"], ["a", "b"]).tolist()
    [[1, 0], [1, 0]]
    """
    number = {label: place for place, label in enumerate(dict.fromkeys([*labels, *expected, *predicted]))}
    cells = [number[right] * len(number) + number[given] for right, given in zip(expected, predicted, strict=True)]
    return np.bincount(cells, minlength=len(number) ** 2).reshape(len(number), -1)


def most_frequent(labels: Sequence[str]) -> str:
    """The label that there is most of; of several the first in the alphabet.

    >>> most_frequent(["b", "a", "b", "a"])
    'a'
    """
    return max(sorted(set(labels)), key=list(labels).count)


def score_classes(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `classify`."""
    return classification_metrics(examples.labels, [answer["label"] for answer in answers], task.labels)
