"""Vectorized random choices and reorderings inside segments: rows of different lengths, concatenated in one array.

There are b segments; `lengths` (b,) are their lengths, and n is the sum of the lengths. The random numbers of a segment
depend on its number in `index` (b,) and on positions inside it, never on other segments.
"""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.spans import span_indices

PLACE, CHANCE = 20, 24  # bits of a sort key: below the segment, its random number, and the position to break ties


def segment_starts(lengths: Array) -> Array:
    """Return the index at which each segment of a concatenated array starts, (b,), given the segments' lengths.

    >>> segment_starts(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    return np.cumsum(lengths) - lengths


def segment_ids(lengths: Array) -> Array:
    """Return, for each entry of a concatenated array, the number of its segment (from 0), (n,)."""
    return np.repeat(np.arange(len(lengths)), lengths)


def segment_positions(lengths: Array) -> Array:
    """Return, for each entry of a concatenated array, its position inside its segment (from 0), (n,)."""
    return np.arange(int(lengths.sum())) - np.repeat(segment_starts(lengths), lengths)


def segment_cumsum(values: Array, lengths: Array) -> Array:
    """Return the cumulative sum of `values` (n,), restarted at each segment, given the segments' lengths.

    >>> segment_cumsum(np.array([1, 2, 3, 4]), np.array([2, 2])).tolist()
    [1, 3, 3, 7]
    """
    before = np.concatenate([[0], np.cumsum(values)])
    return before[1:] - np.repeat(before[segment_starts(lengths)], lengths)


def segment_sum(values: Array, lengths: Array) -> Array:
    """Return the sum of `values` (n,) over each segment, (b,), given the segments' lengths."""
    before = np.concatenate([[0], np.cumsum(values)])
    return np.diff(before[np.concatenate([[0], np.cumsum(lengths)])])


def segment_shuffle(lengths: Array, draws: EpochRandom, purpose: str, index: Array) -> Array:
    """Return indices (n,) that shuffle the entries of a concatenated array within each segment.

    The name `purpose` and the segments' numbers `index` (b,) seed the random numbers.
    """
    owner, place = segment_ids(lengths), segment_positions(lengths)
    chance = draws.integers(1 << CHANCE, purpose, np.repeat(index, lengths), place)
    # Sorting keys that contain the position is several times faster than an argsort.
    keys = np.sort((owner << (PLACE + CHANCE)) | (chance << PLACE) | place)
    return (keys & ((1 << PLACE) - 1)) + np.repeat(segment_starts(lengths), lengths)


def segment_sample(lengths: Array, counts: Array, draws: EpochRandom, purpose: str, index: Array) -> Array:
    """Return a mask (n,) that is True for counts[i] random entries of each segment i.

    The name `purpose` and the segments' numbers `index` (b,) seed the random numbers.
    """
    order = segment_shuffle(lengths, draws, purpose, index)
    picked = np.zeros(len(order), dtype=bool)
    picked[order[span_indices(segment_starts(lengths), counts)]] = True
    return picked


def local_shuffle(lengths: Array, window: int, draws: EpochRandom, purpose: str, index: Array) -> Array:
    """Return indices (n,) that shuffle the entries of each segment by at most `window` positions.

    The name `purpose` and the segments' numbers `index` (b,) seed the random numbers.
    """
    place = segment_positions(lengths)
    moved = place + (window + 1) * draws.uniform(purpose, np.repeat(index, lengths), place)
    keys = (segment_ids(lengths) << (PLACE + CHANCE)) | (moved * (1 << PLACE)).astype(np.int64)
    return np.argsort(keys, kind="stable")


def reorder_groups(begins: Array, order: Array) -> Array:
    """Return indices (n,) that put groups of adjacent entries into a new order.

    A group starts at each entry where `begins` (n,) is True; `order` lists the numbers of the groups, from 0, in their
    new order.
    """
    first = np.flatnonzero(begins)
    sizes = np.diff(np.concatenate([first, [len(begins)]]))
    return span_indices(first[order], sizes[order])
