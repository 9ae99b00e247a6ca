"""Compute the metrics of MultiRC and MuSeRC, whose questions have several correct answers (Khashabi et al., 2018)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def multirc_metrics(
    questions: Sequence[Hashable], expected: Sequence[bool], predicted: Sequence[bool]
) -> dict[str, float]:
    """Return the F1 of the candidate answers (`f1a`) and the share of fully correct questions (`exact_questions`).

    Each sequence has one entry per candidate answer: the id of its question, whether it is correct, and whether it was
    predicted to be correct. In a fully correct question, all candidates are classified correctly.

    >>> multirc_metrics(["a", "a", "b"], [True, False, True], [True, True, True])
    {'f1a': 0.8, 'exact_questions': 0.5}
    """
    from sklearn.metrics import f1_score

    correct: dict[Hashable, bool] = {}
    for question, label, guess in zip(questions, expected, predicted, strict=True):
        correct[question] = correct.get(question, True) and label == guess
    return {
        "f1a": float(f1_score(np.array(expected), np.array(predicted), zero_division=0)),
        "exact_questions": float(np.mean(list(correct.values()))),
    }
