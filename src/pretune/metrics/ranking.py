"""Compute ranking metrics: mean reciprocal rank, nDCG, mean average precision, hit rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics, mean_metrics
from pretune.runtime.arrays import Array


def ranking_metrics(ranks: Array, at: int = 10) -> dict[str, float]:
    """Return the hit rate and nDCG at the cutoff `at`, and the MRR.

    `ranks` has the rank, from 1, of the correct answer to each query.

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


def query_metrics(groups: Array, relevances: Array, scores: Array, at: int = 10) -> AdditiveMetrics:
    """Return MRR, nDCG at the cutoff `at`, and MAP, averaged over the queries that have a relevant candidate.

    The arrays have one entry per candidate: the id of its query (`groups`), its relevance, and its predicted score. In
    MRR, an irrelevant candidate with the same score as the first relevant one is ranked before it.

    >>> query_metrics(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([2.0, 1.0, 0.0])).compute()["mrr"]
    0.5
    """
    from sklearn.metrics import average_precision_score, ndcg_score

    metrics = []
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        relevant, score = relevances[rows], scores[rows]
        if (relevant > 0).any():
            rank = 1 + int(((score >= score[relevant > 0].max()) & (relevant == 0)).sum())
            gain = ndcg_score([relevant], [score], k=at) if len(score) > 1 else 1.0
            metrics.append((1 / rank, gain, average_precision_score(relevant > 0, score)))
    return mean_metrics(metrics, "mrr", f"ndcg@{at}", "map")


def rank_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return MRR, nDCG and MAP of predicted scores (`answers`) on labeled candidates (task `rank`)."""
    scores = np.array([answer["score"] for answer in answers])
    return query_metrics(examples.queries, np.array(examples.labels), scores)
