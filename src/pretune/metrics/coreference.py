"""Compute MUC, B³, CEAF-φ4 and their mean, the score of coreference of CoNLL-2012 (Pradhan et al., 2014).

Sources: Vilain et al., 1995 (MUC); Bagga and Baldwin, 1998 (B³); Luo, 2005 (CEAF); Pradhan et al., 2014, *Scoring Coreference Partitions
of Predicted Mentions: A Reference Implementation*. As in that implementation, sums are over all documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

Clusters = Sequence[Sequence[Sequence[int]]]  # of a document: mentions with the indices of the first and the last word
SCORES = ("muc", "b_cubed", "ceaf")


def coreference_metrics(expected: Sequence[Clusters], predicted: Sequence[Clusters]) -> AdditiveMetrics:
    """Return MUC, B³ and CEAF-φ4 of the predicted clusters of documents, and `conll_f1`, the mean of their F1.

    `mention_f1` is the F1 of the mentions without regard to clusters. Clusters of one mention count where they occur.

    >>> gold, guess = [[[0, 0], [4, 4], [9, 9]]], [[[0, 0], [4, 4]]]
    >>> metrics = coreference_metrics([gold], [guess]).compute()
    >>> {name: round(metrics[name], 2) for name in ("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_f1")}
    {'conll_f1': 0.69, 'muc_f1': 0.67, 'b_cubed_f1': 0.62, 'ceaf_f1': 0.8}
    """
    values = []
    for gold, guess in zip(map(_as_sets, expected), map(_as_sets, predicted), strict=True):
        mentions = (
            {mention for cluster in gold for mention in cluster},
            {mention for cluster in guess for mention in cluster},
        )
        row: list[float] = [len(mentions[0] & mentions[1]), len(mentions[0]), len(mentions[1])]
        aligned = _ceaf(gold, guess)
        row += [*_muc(gold, guess), *_muc(guess, gold), *_b_cubed(gold, guess), *_b_cubed(guess, gold)]
        row += [aligned, len(gold), aligned, len(guess)]
        values.append(row)

    def from_sums(sums: Array) -> dict[str, float]:
        both, gold, guessed = map(float, sums[:3])
        found: dict[str, float] = {}
        for name, counts in zip(SCORES, sums[3:].reshape(3, 4), strict=True):
            recall, precision = (float(right / total) if total else 0.0 for right, total in counts.reshape(2, 2))
            f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            found |= {f"{name}_f1": f1, f"{name}_precision": precision, f"{name}_recall": recall}
        mean = float(np.mean([found[f"{name}_f1"] for name in SCORES]))
        return {"conll_f1": mean, **found, "mention_f1": 2 * both / max(1.0, gold + guessed)}

    return AdditiveMetrics(np.array(values, dtype=np.float64).reshape(-1, 15), from_sums)


def _as_sets(clusters: Clusters) -> list[frozenset[Any]]:
    return [frozenset(map(tuple, cluster)) for cluster in clusters if len(cluster)]


def _owners(clusters: Sequence[frozenset[Any]]) -> dict[Any, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _muc(key: Sequence[frozenset[Any]], response: Sequence[frozenset[Any]]) -> tuple[float, float]:
    """Return how many links of `key` are in `response`, and how many there are; a cluster of n mentions has n - 1."""
    owner = _owners(response)
    # A cluster falls into one part per cluster of the response, and one per mention that the response lacks.
    parts = [len({owner.get(mention, mention) for mention in cluster}) for cluster in key]
    return sum(map(len, key)) - sum(parts), sum(map(len, key)) - len(key)


def _b_cubed(key: Sequence[frozenset[Any]], response: Sequence[frozenset[Any]]) -> tuple[float, float]:
    """Return the sum over the mentions of `key` of the share of their cluster that is in theirs of `response`, and their number."""
    owner = _owners(response)
    right = 0.0
    for cluster in key:
        shared = Counter(owner[mention] for mention in cluster if mention in owner)
        right += sum(count * count for count in shared.values()) / len(cluster)
    return right, sum(map(len, key))


def _ceaf(key: Sequence[frozenset[Any]], response: Sequence[frozenset[Any]]) -> float:
    """Return the similarity φ4 of the best alignment of clusters: 2 |K ∩ R| / (|K| + |R|), summed over pairs."""
    from scipy.optimize import linear_sum_assignment

    if not key or not response:
        return 0.0
    similarity = np.array([[2 * len(k & r) / (len(k) + len(r)) for r in response] for k in key])
    return float(similarity[linear_sum_assignment(-similarity)].sum())
