"""How good a classifier is: accuracy, F1, Matthews correlation, from scikit-learn."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
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


def several_labels_metrics(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Rows whose labels are all right, and F1 over all labels of all rows and as the mean over classes.

    >>> several_labels_metrics([["a"], []], [["a", "b"], []], ["a", "b"])
    {'exact_match': 0.5, 'micro_f1': 0.6666666666666666, 'macro_f1': 0.5}
    """
    from sklearn.metrics import accuracy_score, f1_score

    wanted, found = (np.array([[label in row for label in labels] for row in rows]) for rows in (expected, predicted))
    return {
        "exact_match": float(accuracy_score(wanted, found)),
        "micro_f1": float(f1_score(wanted, found, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(wanted, found, average="macro", zero_division=0)),
    }


def most_frequent(labels: Iterable[Any]) -> Any:
    """The label that there is most of; of several the first in the alphabet.

    >>> most_frequent(["b", "a", "b", "a"])
    'a'
    """
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def score_classes(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `classify` and `match`."""
    if getattr(task, "multi", False):
        return several_labels_metrics(examples.labels, [answer["labels"] for answer in answers], task.labels)
    return classification_metrics(examples.labels, [answer["label"] for answer in answers], task.labels)
