"""Choosing what to mask: so many tokens of each sequence, as tokens or as whole words."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.randomness import Draws
from pretune.text.sequences import Sequences

Array = np.ndarray[Any, np.dtype[Any]]


def choose(sequences: Sequences, rate: float, draws: Draws, whole_words: bool = False) -> Array:
    """(n,) True for about `rate` of each sequence's tokens, special ones never: exactly round(rate · length), at least 1.

    Whole words are taken as long as they fit into that number, so that there are sometimes fewer.
    """
    free = ~sequences.columns["special"]
    owner, place = sequences.owner, sequences.place
    if whole_words:
        starts = free & (sequences.columns["word"] | np.concatenate([[True], ~free[:-1]]))
        unit = np.cumsum(starts) - 1  # the word of each free token
        at = np.flatnonzero(starts)
    else:
        unit = np.cumsum(free) - 1
        at = np.flatnonzero(free)
    if not len(at):
        return np.zeros(len(free), dtype=bool)
    sizes = np.bincount(unit[free], minlength=len(at))  # tokens of each word
    lengths = np.bincount(owner[free], minlength=len(sequences.lengths))
    wanted = np.where(lengths > 0, np.maximum(1, np.round(rate * lengths)), 0).astype(np.int64)
    # Words in random order within each sequence; those whose running total of tokens stays within what is wanted.
    # One key to sort by is much faster than two: the sequence, 24 random bits, and the place to tell equal ones apart.
    chance = draws.integers(1 << 24, "choose", sequences.index[owner[at]], place[at])
    order = np.argsort((owner[at] << 44) | (chance << 20) | place[at])
    running = np.cumsum(sizes[order])
    group = owner[at][order]
    before = running - sizes[order]
    first = np.searchsorted(group, np.arange(len(lengths)))
    base = np.where(first < len(before), before[np.minimum(first, len(before) - 1)], 0)
    taken = np.empty(len(at), dtype=bool)
    taken[order] = running - base[group] <= wanted[group]
    return free & taken[np.maximum(unit, 0)]
