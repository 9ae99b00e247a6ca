"""Compute which items of a sequence lie inside intervals of equal length."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array


def cover(starts: Array, length: int, size: int) -> Array:
    """Return a mask, (size,), of the items that lie inside at least one interval.

    Each interval begins at one of the distinct indices in `starts` and contains `length` items.

    >>> cover(np.array([1, 2]), 2, 5).tolist()
    [False, True, True, True, False]
    """
    steps = np.zeros(size + length + 1, dtype=np.int64)
    steps[starts] += 1
    steps[starts + length] -= 1
    return np.cumsum(steps)[:size] > 0
