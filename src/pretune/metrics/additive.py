"""Metrics that are functions of sums over examples, so that bootstrap samples can be scored quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


@dataclass(frozen=True)
class AdditiveMetrics:
    """Metrics that are functions of sums over units (usually examples), stored as each unit's contribution to the sums.

    >>> AdditiveMetrics(np.array([[1.0, 1.0], [0.0, 1.0]]), lambda sums: {"accuracy": sums[0] / sums[1]}).compute()
    {'accuracy': 0.5}
    """

    values: Array  # (units, sums)
    from_sums: Callable[[Array], dict[str, float]]

    def compute(self, units: Any = slice(None)) -> dict[str, float]:
        """Return the metrics over the units (usually examples) at the indices `units`, by default over all units."""
        return {name: float(value) for name, value in self.from_sums(self.values[units].sum(0)).items()}


def join_metrics(parts: Sequence[AdditiveMetrics]) -> AdditiveMetrics:
    """Join several AdditiveMetrics of the same units (usually examples) into one object."""
    ends = np.cumsum([part.values.shape[1] for part in parts])[:-1]

    def from_sums(sums: Array) -> dict[str, float]:
        pieces = zip(parts, np.split(sums, ends), strict=True)
        return {name: value for part, piece in pieces for name, value in part.from_sums(piece).items()}

    return AdditiveMetrics(np.hstack([part.values for part in parts]), from_sums)


def mean_metrics(rows: Sequence[Sequence[float]], *names: str) -> AdditiveMetrics:
    """Return metrics that are means over units (usually examples), given one row per unit with one value per metric."""
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return AdditiveMetrics(
        np.hstack([values, np.ones((len(rows), 1))]),
        lambda sums: dict(zip(names, sums[:-1] / max(1.0, sums[-1]), strict=True)),
    )
