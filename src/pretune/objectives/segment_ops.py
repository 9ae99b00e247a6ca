"""Chance and order inside rows of different lengths that lie end to end, all rows at once.

A row's draws depend on its `index` and on places inside it, never on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.runtime.randomness import Draws
from pretune.text.spans import spans_to_indices

Array = np.ndarray[Any, np.dtype[Any]]
PLACE, CHANCE = 20, 24  # bits of a key to sort by: below the row, its chance, and the place to tell equal ones apart


def starts_of(lengths: Array) -> Array:
    """(b,) where each row starts.

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    return np.cumsum(lengths) - lengths


def owners(lengths: Array) -> Array:
    """(n,) the row of each entry."""
    return np.repeat(np.arange(len(lengths)), lengths)


def places(lengths: Array) -> Array:
    """(n,) the place of each entry in its row."""
    return np.arange(int(lengths.sum())) - np.repeat(starts_of(lengths), lengths)


def running(values: Array, lengths: Array) -> Array:
    """(n,) the sum of all entries of the row up to and including each.

    >>> running(np.array([1, 2, 3, 4]), np.array([2, 2])).tolist()
    [1, 3, 3, 7]
    """
    before = np.concatenate([[0], np.cumsum(values)])
    return before[1:] - np.repeat(before[starts_of(lengths)], lengths)


def totals(values: Array, lengths: Array) -> Array:
    """(b,) the sum of each row."""
    before = np.concatenate([[0], np.cumsum(values)])
    return np.diff(before[np.concatenate([[0], np.cumsum(lengths)])])


def shuffled(lengths: Array, draws: Draws, purpose: str, index: Array) -> Array:
    """(n,) all entries, by their number, in random order inside each row; `index` (b,) names the rows."""
    owner, place = owners(lengths), places(lengths)
    chance = draws.integers(1 << CHANCE, purpose, np.repeat(index, lengths), place)
    # Sorting keys that end in the place is several times faster than asking for the order of keys.
    keys = np.sort((owner << (PLACE + CHANCE)) | (chance << PLACE) | place)
    return (keys & ((1 << PLACE) - 1)) + np.repeat(starts_of(lengths), lengths)


def pick(lengths: Array, counts: Array, draws: Draws, purpose: str, index: Array) -> Array:
    """(n,) True for exactly `counts` (b,) entries of each row, every choice as likely as any other."""
    order = shuffled(lengths, draws, purpose, index)
    picked = np.zeros(len(order), dtype=bool)
    picked[order[spans_to_indices(starts_of(lengths), counts)]] = True
    return picked


def jostled(lengths: Array, window: int, draws: Draws, purpose: str, index: Array) -> Array:
    """(n,) all entries in another order inside each row, none more than `window` places from where it was."""
    place = places(lengths)
    moved = place + (window + 1) * draws.uniform(purpose, np.repeat(index, lengths), place)
    keys = (owners(lengths) << (PLACE + CHANCE)) | (moved * (1 << PLACE)).astype(np.int64)
    return np.argsort(keys, kind="stable")


def take_groups(begins: Array, order: Array) -> Array:
    """(n,) entries by their number, when the groups that start where `begins` (n,) is True come in a new order."""
    first = np.flatnonzero(begins)
    sizes = np.diff(np.concatenate([first, [len(begins)]]))
    return spans_to_indices(first[order], sizes[order])
