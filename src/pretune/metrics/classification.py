"""How good a classifier is: accuracy, F1, Matthews correlation, from scikit-learn."""

from __future__ import annotations

import warnings
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
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    options: dict[str, Any] = {"average": "macro", "labels": list(labels)}
    if len(labels) == 2:
        options = {"average": "binary", "pos_label": labels[1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where all are of one class, the correlation is 0
        matthews = float(matthews_corrcoef(expected, predicted))
    return {
        "accuracy": float(accuracy_score(expected, predicted)),
        "f1": float(f1_score(expected, predicted, zero_division=0, **options)),
        "matthews": matthews,
    }


def most_frequent(labels: Sequence[str]) -> str:
    """The label that there is most of; of several the first in the alphabet.

    >>> most_frequent(["b", "a", "b", "a"])
    'a'
    """
    return max(sorted(set(labels)), key=list(labels).count)


def score_classes(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `classify`."""
    return classification_metrics(examples.labels, [answer["label"] for answer in answers], task.labels)
