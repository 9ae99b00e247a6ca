"""Compute metrics that are functions of sums over examples, so that bootstrap samples can be scored quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


@dataclass(frozen=True)
class AdditiveMetrics:
    """Metrics that are functions of sums over units, usually examples.

    `values` (units, sums) has the contribution of each unit to each sum, and `from_sums` computes the metrics from the
    sums.

    >>> AdditiveMetrics(np.array([[1.0, 1.0], [0.0, 1.0]]), lambda sums: {"accuracy": sums[0] / sums[1]}).compute()
    {'accuracy': 0.5}
    """

    values: Array  # (units, sums)
    from_sums: Callable[[Array], dict[str, float]]

    def compute(self, units: Any = slice(None)) -> dict[str, float]:
        """Return the metrics over the units (usually examples) at the indices `units`; by default, over all units."""
        return {name: float(value) for name, value in self.from_sums(self.values[units].sum(0)).items()}


def join_metrics(parts: Sequence[AdditiveMetrics]) -> AdditiveMetrics:
    """Join several AdditiveMetrics of the same units (usually examples) into one that computes all of their metrics."""
    ends = np.cumsum([part.values.shape[1] for part in parts])[:-1]

    def from_sums(sums: Array) -> dict[str, float]:
        pieces = zip(parts, np.split(sums, ends), strict=True)
        return {name: value for part, piece in pieces for name, value in part.from_sums(piece).items()}

    return AdditiveMetrics(np.hstack([part.values for part in parts]), from_sums)


def mean_metrics(rows: Sequence[Sequence[float]], *names: str) -> AdditiveMetrics:
    """Return metrics that are means over units (usually examples).

    Each of `rows` has the values of a unit, one per metric; `names` are the names of the metrics.
    """
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return AdditiveMetrics(
        np.hstack([values, np.ones((len(rows), 1))]),
        lambda sums: dict(zip(names, sums[:-1] / max(1.0, sums[-1]), strict=True)),
    )
