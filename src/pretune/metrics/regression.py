"""Compute metrics of regression and text similarity: correlations, mean squared error, retrieval accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


def correlations(expected: Sequence[float] | Array, predicted: Sequence[float] | Array) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation; 0 if all expected or all predicted values are equal.

    >>> correlations([1, 2, 3], [1, 4, 9])["spearman"]
    1.0
    """
    from scipy.stats import pearsonr, spearmanr

    if min(np.ptp(expected), np.ptp(predicted)) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    tests = {"pearson": pearsonr, "spearman": spearmanr}
    return {name: float(test(expected, predicted).statistic) for name, test in tests.items()}


def regression_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return the correlations and the mean squared error of predicted numbers (`answers`) on labeled examples.

    This is for the task `regress`.
    """
    expected, predicted = np.array(examples.labels), np.array([answer["value"] for answer in answers])
    return {**correlations(expected, predicted), "mse": float(np.mean((expected - predicted) ** 2))}


def similarity_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return correlations for labeled text pairs, or the accuracy and MRR of retrieval for pairs without labels."""
    if examples.labels is not None:
        return correlations(examples.labels, [answer["similarity"] for answer in answers])
    ranks = np.array([answer["place"] for answer in answers])
    return {"accuracy": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}
