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


def list_metrics(relevances: Sequence[Array], cutoffs: Sequence[int] = (5, 10)) -> AdditiveMetrics:
    """Return precision and MAP at the cutoffs and nDCG at the last one, averaged over lists with a relevant candidate.

    `relevances` has, for each list, the relevance of its candidates, best-ranked first. The precision at k is the share
    of relevant candidates among the first k. The average precision at k is the sum of the precisions at the relevant
    candidates among the first k, divided by the largest possible number of these.

    >>> list_metrics([np.array([0, 1, 0])]).compute()["map@5"]
    0.5
    """
    rows = []
    for ranked in relevances:
        if not (ranked > 0).any():
            continue
        hits, places = ranked > 0, np.arange(1, len(ranked) + 1)
        precisions = np.cumsum(hits) / places
        values = [float(hits[:k].sum()) / k for k in cutoffs]
        values += [float((precisions * hits)[:k].sum()) / min(k, int(hits.sum())) for k in cutoffs]
        discounts = 1 / np.log2(places + 1)
        ideal = -np.sort(-ranked)
        last = cutoffs[-1]
        rows.append([*values, float((ranked * discounts)[:last].sum() / (ideal * discounts)[:last].sum())])
    names = [f"{name}@{k}" for name in ("precision", "map") for k in cutoffs]
    return mean_metrics(rows, *names, f"ndcg@{cutoffs[-1]}")


def rank_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return MRR, nDCG and MAP of predicted scores (`answers`) on labeled candidates (task `rank`)."""
    scores = np.array([answer["score"] for answer in answers])
    return query_metrics(examples.queries, np.array(examples.labels), scores)
