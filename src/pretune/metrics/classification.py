"""Compute classification metrics as scikit-learn does, but faster, because bootstrap intervals need hundreds of evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


def classification_metrics(
    expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Return accuracy, Matthews correlation, and F1: `f1` of the second of two labels, or `macro_f1` of more labels.

    >>> classification_metrics(["a", "b"], ["a", "b"], ["a", "b"])["accuracy"]
    1.0
    """
    counts = confusion(expected, predicted, labels)
    correct, assigned, actual, total = np.diag(counts), counts.sum(0), counts.sum(1), counts.sum()
    f1 = 2 * correct / np.maximum(1, assigned + actual)
    # The correlation is 0 if all labels or all predictions are equal.
    spread = np.sqrt(float(total**2 - (assigned**2).sum())) * np.sqrt(float(total**2 - (actual**2).sum()))
    return {
        "accuracy": float(correct.sum() / max(1, total)),
        **({"f1": float(f1[1])} if len(labels) == 2 else {"macro_f1": float(f1[: len(labels)].mean())}),
        "matthews": float((total * correct.sum() - (assigned * actual).sum()) / spread) if spread else 0.0,
    }


def confusion(expected: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Array:
    """Return the confusion matrix, whose rows are expected and whose columns are predicted labels.

    The order is that of `labels`, followed by labels that are not among them.

    >>> confusion(["a", "b"], ["a", "a"], ["a", "b"]).tolist()
    [[1, 0], [1, 0]]
    """
    index = {label: i for i, label in enumerate(dict.fromkeys([*labels, *expected, *predicted]))}
    cells = [index[row] * len(index) + index[column] for row, column in zip(expected, predicted, strict=True)]
    return np.bincount(cells, minlength=len(index) ** 2).reshape(len(index), -1)


def multi_label_metrics(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Return the metrics of multi-label classification: exact match of label sets, micro F1 and macro F1.

    >>> multi_label_metrics([["a"], []], [["a", "b"], []], ["a", "b"])
    {'exact_match': 0.5, 'micro_f1': 0.6666666666666666, 'macro_f1': 0.5}
    """
    from sklearn.metrics import accuracy_score, f1_score

    both = [np.array([[label in row for label in labels] for row in rows]) for rows in (expected, predicted)]
    f1 = {f"{kind}_f1": float(f1_score(*both, average=kind, zero_division=0)) for kind in ("micro", "macro")}
    return {"exact_match": float(accuracy_score(*both)), **f1}


def most_frequent(labels: Iterable[Any]) -> Any:
    """Return the most frequent label, and among equally frequent labels the first in alphabetical order.

    >>> most_frequent(["b", "a", "b", "a"])
    'a'
    """
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def class_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return the classification metrics of predicted labels (`answers`) on labeled examples.

    This is for the tasks `classify` and `match`.
    """
    if task.multi_label:
        return multi_label_metrics(examples.labels, [answer["labels"] for answer in answers], task.labels)
    return classification_metrics(examples.labels, [answer["label"] for answer in answers], task.labels)
