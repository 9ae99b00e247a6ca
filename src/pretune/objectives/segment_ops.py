"""Vectorized random choices and reorderings inside segments: rows of different lengths that lie end to end in one array.

`lengths` (b,) are the lengths of the segments and n is their sum. The draws of a segment depend on its `index` and on
positions inside it, never on other segments.
"""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.randomness import Draws
from pretune.text.spans import spans_to_indices

PLACE, CHANCE = 20, 24  # bits of a sort key: below the segment, its random number, and the position to break ties


def starts_of(lengths: Array) -> Array:
    """Return the start of each segment, (b,).

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    return np.cumsum(lengths) - lengths


def owners(lengths: Array) -> Array:
    """Return the segment of each entry, (n,)."""
    return np.repeat(np.arange(len(lengths)), lengths)


def places(lengths: Array) -> Array:
    """Return the position of each entry in its segment, (n,)."""
    return np.arange(int(lengths.sum())) - np.repeat(starts_of(lengths), lengths)


def running(values: Array, lengths: Array) -> Array:
    """Return the cumulative sum inside each segment, (n,).

    >>> running(np.array([1, 2, 3, 4]), np.array([2, 2])).tolist()
    [1, 3, 3, 7]
    """
    before = np.concatenate([[0], np.cumsum(values)])
    return before[1:] - np.repeat(before[starts_of(lengths)], lengths)


def totals(values: Array, lengths: Array) -> Array:
    """Return the sum of each segment, (b,)."""
    before = np.concatenate([[0], np.cumsum(values)])
    return np.diff(before[np.concatenate([[0], np.cumsum(lengths)])])


def shuffled(lengths: Array, draws: Draws, purpose: str, index: Array) -> Array:
    """Return the indices of all entries, shuffled inside each segment, (n,); `index` (b,) identifies the segments."""
    owner, place = owners(lengths), places(lengths)
    chance = draws.integers(1 << CHANCE, purpose, np.repeat(index, lengths), place)
    # Sorting keys that contain the position is several times faster than an argsort.
    keys = np.sort((owner << (PLACE + CHANCE)) | (chance << PLACE) | place)
    return (keys & ((1 << PLACE) - 1)) + np.repeat(starts_of(lengths), lengths)


def pick(lengths: Array, counts: Array, draws: Draws, purpose: str, index: Array) -> Array:
    """Return a mask (n,) with exactly `counts` (b,) entries of each segment, sampled uniformly without replacement."""
    order = shuffled(lengths, draws, purpose, index)
    picked = np.zeros(len(order), dtype=bool)
    picked[order[spans_to_indices(starts_of(lengths), counts)]] = True
    return picked


def jostled(lengths: Array, window: int, draws: Draws, purpose: str, index: Array) -> Array:
    """Return the indices of all entries, (n,), locally reordered: none moves by more than `window` positions."""
    place = places(lengths)
    moved = place + (window + 1) * draws.uniform(purpose, np.repeat(index, lengths), place)
    keys = (owners(lengths) << (PLACE + CHANCE)) | (moved * (1 << PLACE)).astype(np.int64)
    return np.argsort(keys, kind="stable")


def take_groups(begins: Array, order: Array) -> Array:
    """Return the indices of all entries, (n,), with their groups in a new order.

    A group starts where `begins` (n,) is True.
    """
    first = np.flatnonzero(begins)
    sizes = np.diff(np.concatenate([first, [len(begins)]]))
    return spans_to_indices(first[order], sizes[order])
