"""Metrics that are functions of sums over examples, so that bootstrap samples can be scored quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array


@dataclass(frozen=True)
class AdditiveMetrics:
    """The contribution of each unit (usually an example) to some sums, and the metrics computed from these sums.

    >>> AdditiveMetrics(np.array([[1.0, 1.0], [0.0, 1.0]]), lambda sums: {"accuracy": sums[0] / sums[1]}).whole()
    {'accuracy': 0.5}
    """

    values: Array  # (units, sums)
    finish: Callable[[Array], dict[str, float]]

    def whole(self) -> dict[str, float]:
        """Return the metrics over all units."""
        return self.of(slice(None))

    def of(self, units: Any) -> dict[str, float]:
        """Return the metrics over a sample of units, in which a unit may occur several times."""
        return {name: float(value) for name, value in self.finish(self.values[units].sum(0)).items()}


def join_metrics(parts: Sequence[AdditiveMetrics]) -> AdditiveMetrics:
    """Join several metrics of the same units into one."""
    ends = np.cumsum([part.values.shape[1] for part in parts])[:-1]

    def finish(sums: Array) -> dict[str, float]:
        pieces = zip(parts, np.split(sums, ends), strict=True)
        return {name: value for part, piece in pieces for name, value in part.finish(piece).items()}

    return AdditiveMetrics(np.hstack([part.values for part in parts]), finish)


def mean_metrics(values: Array, *names: str) -> AdditiveMetrics:
    """Return metrics that are means over units."""
    ones = np.ones((len(values), 1))
    return AdditiveMetrics(
        np.hstack([values, ones]), lambda sums: dict(zip(names, sums[:-1] / max(1.0, sums[-1]), strict=True))
    )
