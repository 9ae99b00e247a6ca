"""Compute indices of the tokens in spans, which are given by their starts and lengths."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array


def span_indices(starts: Array, lengths: Array) -> Array:
    """Return the indices of all elements inside spans, span after span, given their starts and lengths.

    >>> span_indices(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(np.asarray(starts, dtype=np.int64) - (ends - lengths), lengths)
    indices: Array = np.arange(total, dtype=np.int64) + shift
    return indices
