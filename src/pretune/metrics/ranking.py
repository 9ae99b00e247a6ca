"""How good a ranking is: hit rate, normalized discounted cumulative gain and reciprocal rank, for one right answer each."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def ranking_metrics(ranks: Array, at: int = 10) -> dict[str, float]:
    """Of the places of the right answers, 1 the best: how many are among the first `at`, and how high they stand there.

    >>> ranking_metrics(np.array([1, 3, 11]))
    {'hit_rate@10': 0.6666666666666666, 'ndcg@10': 0.5, 'mrr': 0.4747474747474747}
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    gains = np.where(ranks <= at, 1 / np.log2(ranks + 1), 0.0)
    return {
        f"hit_rate@{at}": float((ranks <= at).mean()),
        f"ndcg@{at}": float(gains.mean()),
        "mrr": float((1 / ranks).mean()),
    }
