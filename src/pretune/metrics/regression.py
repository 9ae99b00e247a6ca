"""Metrics of regression and text similarity: correlations from SciPy, mean squared error, retrieval of the matching text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


def correlations(expected: Sequence[float] | Array, predicted: Sequence[float] | Array) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation; 0 if all values of one side are equal.

    >>> correlations([1, 2, 3], [1, 4, 9])["spearman"]
    1.0
    """
    from scipy.stats import pearsonr, spearmanr

    if min(np.ptp(expected), np.ptp(predicted)) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    both = pearsonr(expected, predicted), spearmanr(expected, predicted)
    return {name: float(found.statistic) for name, found in zip(("pearson", "spearman"), both, strict=True)}


def regression_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return the metrics of the task `regress`."""
    expected, predicted = np.array(examples.labels), np.array([answer["value"] for answer in answers])
    return {**correlations(expected, predicted), "mse": float(np.mean((expected - predicted) ** 2))}


def similarity_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return the metrics of the task `contrast`: correlations with the scores, or how often the matching text is the nearest."""
    if examples.labels is not None:
        return correlations(examples.labels, [answer["similarity"] for answer in answers])
    places = np.array([answer["place"] for answer in answers])
    return {"accuracy": float((places == 1).mean()), "mrr": float((1 / places).mean())}
