"""Is one model better than another? Both answer the same examples, and these are drawn again (Efron, 1979; Koehn, 2004)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDS = 1000
COVERAGE = 0.95

Answers = Sequence[Mapping[str, Any]]
Metric = Callable[[Sequence[Any], Answers], float]


@dataclass(frozen=True)
class Difference:
    """How much higher the second scores than the first, between which values in 95 of 100 draws, and how likely by chance."""

    first: float
    second: float
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        """Second less first."""
        return self.second - self.first


def compare(
    metric: Metric, rows: Sequence[Any], first: Sequence[Answers], second: Sequence[Answers], seed: int = 0
) -> Difference:
    """Two models by one metric: the answers of each seed of either to the same rows; a model's score is the mean over seeds.

    In each round the same examples are drawn for all, and seeds too, where there are several. `p` is two-sided.
    """
    sides = (first, second)
    found = [float(np.mean([metric(rows, answers) for answers in side])) for side in sides]
    chance = np.random.default_rng(seed)
    differences = np.empty(ROUNDS)
    for number in range(ROUNDS):
        drawn = chance.integers(0, len(rows), len(rows)).tolist()
        kept = [rows[row] for row in drawn]
        scores = []
        for side in sides:
            seeds = chance.integers(0, len(side), len(side)) if len(side) > 1 else [0]
            scores.append(np.mean([metric(kept, [side[s][row] for row in drawn]) for s in seeds]))
        differences[number] = scores[1] - scores[0]
    tail = 100 * (1 - COVERAGE) / 2
    low, high = (float(np.percentile(differences, q)) for q in (tail, 100 - tail))
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    p = min(1.0, 2 * (min(below, above) + 1) / (ROUNDS + 1))
    return Difference(found[0], found[1], low, high, p)
