"""Paired bootstrap tests of the difference between two models (Efron, 1979; Koehn, 2004)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

ROUNDS = 1000
TOGETHER = 50  # rounds that are summed at once
COVERAGE = 0.95

Answers = Sequence[Mapping[str, Any]]
Metric = Callable[[Sequence[Any], Answers], float]


@dataclass(frozen=True)
class Difference:
    """The scores of two models, and the difference between them: the second score minus the first.

    `low` and `high` are the bounds of the 95 % confidence interval of the difference, and `p` is its two-sided p-value.
    """

    first: float
    second: float
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        """Return the score of the second model minus the score of the first model."""
        return self.second - self.first


def compare(
    metric: Metric, rows: Sequence[Any], first: Sequence[Answers], second: Sequence[Answers], seed: int = 0
) -> Difference:
    """Compare two models by a metric, with a paired bootstrap that resamples rows and seeds.

    `first` and `second` have the answers of the two models to `rows`, one list of answers per training seed.
    """
    sides = (first, second)
    found = [float(np.mean([metric(rows, answers) for answers in side])) for side in sides]
    scored = []
    for drawn, seeds in _draws(seed, len(rows), sides):
        places = drawn.tolist()
        kept = [rows[row] for row in places]
        each = zip(sides, seeds, strict=True)
        scored.append([[metric(kept, [side[s][row] for row in places]) for s in chosen] for side, chosen in each])
    return _difference(found, scored)


def compare_additive(
    name: str, first: Sequence[AdditiveMetrics], second: Sequence[AdditiveMetrics], seed: int = 0
) -> Difference:
    """Compare two models as `compare` does, but faster, by a metric that is computed from sums over examples.

    `first` and `second` have the sums of each model, one object per training seed, and `name` is the metric.
    """
    sides = (first, second)
    found = [float(np.mean([parts.compute()[name] for parts in side])) for side in sides]
    every = [parts for side in sides for parts in side]
    units = len(every[0].values)
    values = np.hstack([parts.values for parts in every])
    ends = np.cumsum([parts.values.shape[1] for parts in every])[:-1]
    draws = list[tuple[Array, list[list[int]]]]()
    scored = list[list[list[float]]]()
    for drawn, seeds in _draws(seed, units, sides):
        draws.append((np.bincount(drawn, minlength=units), seeds))
        if len(draws) < TOGETHER and len(scored) + len(draws) < ROUNDS:
            continue
        sums = np.stack([counts for counts, _ in draws]).astype(np.float64) @ values
        for (_, chosen), row in zip(draws, sums, strict=True):
            scores = [float(p.from_sums(own)[name]) for p, own in zip(every, np.split(row, ends), strict=True)]
            of_sides = (scores[: len(first)], scores[len(first) :])
            scored.append([[side[s] for s in some] for side, some in zip(of_sides, chosen, strict=True)])
        draws = []
    return _difference(found, scored)


def _draws(seed: int, units: int, models: Sequence[Sequence[Any]]) -> Iterator[tuple[Array, list[list[int]]]]:
    """Yield resampled example indices and, for each model, resampled seed indices, for each bootstrap round.

    `units` is the number of examples; each of the two `models` is a sequence with one entry per seed.
    """
    chance = np.random.default_rng(seed)
    for _ in range(ROUNDS):
        drawn = chance.integers(0, units, units)
        yield drawn, [chance.integers(0, len(s), len(s)).tolist() if len(s) > 1 else [0] for s in models]


def _difference(scores: Sequence[float], rounds: Sequence[Sequence[Sequence[float]]]) -> Difference:
    """Return the `Difference` of two models with its confidence interval and p-value.

    `scores` are the scores of the two models. rounds[r][m] has the scores of model m in bootstrap round r, one per
    resampled seed.
    """
    differences = np.array([np.mean(second) - np.mean(first) for first, second in rounds])
    tail = 100 * (1 - COVERAGE) / 2
    low, high = (float(np.percentile(differences, q)) for q in (tail, 100 - tail))
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    p = min(1.0, 2 * (min(below, above) + 1) / (len(differences) + 1))
    return Difference(scores[0], scores[1], low, high, p)
