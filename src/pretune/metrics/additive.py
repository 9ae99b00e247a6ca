"""Metrics that are made of sums over examples, so that those of any draw of examples are quickly known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Parts:
    """What each example, or whatever is one unit, adds to some sums, and the metrics that are made of these.

    >>> Parts(np.array([[1.0, 1.0], [0.0, 1.0]]), lambda sums: {"accuracy": sums[0] / sums[1]}).whole()
    {'accuracy': 0.5}
    """

    values: Array  # (units, sums)
    finish: Callable[[Array], dict[str, float]]

    def whole(self) -> dict[str, float]:
        """The metrics of all."""
        return self.of(slice(None))

    def of(self, units: Any) -> dict[str, float]:
        """The metrics of some, which may be among them several times."""
        return {name: float(value) for name, value in self.finish(self.values[units].sum(0)).items()}


def joined(parts: Sequence[Parts]) -> Parts:
    """Several metrics of the same units as one."""
    ends = np.cumsum([part.values.shape[1] for part in parts])[:-1]

    def finish(sums: Array) -> dict[str, float]:
        pieces = zip(parts, np.split(sums, ends), strict=True)
        return {name: value for part, piece in pieces for name, value in part.finish(piece).items()}

    return Parts(np.hstack([part.values for part in parts]), finish)


def means(values: Array, *names: str) -> Parts:
    """Metrics that are means over units."""
    ones = np.ones((len(values), 1))
    return Parts(np.hstack([values, ones]), lambda sums: dict(zip(names, sums[:-1] / max(1.0, sums[-1]), strict=True)))
