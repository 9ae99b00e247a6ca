"""Plans: which sequences make up which pack, as pure functions of lengths, seed and epoch.

A pack is the unit of data. A step of training is a range of packs; processes and micro-batches share them out, so that
the order of the data never depends on how many of them there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws, permutation
from pretune.text.store.store import spans_to_indices

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Plan:
    """An epoch's packs: pack k holds the sequences order[bounds[k] : bounds[k + 1]]."""

    order: Array  # (sequences,)
    bounds: Array  # (packs + 1,)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pack(self, index: int) -> Array:
        """The sequences of a pack."""
        if not 0 <= index < len(self):
            raise IndexError(f"pack {index} of {len(self)}")
        return self.order[self.bounds[index] : self.bounds[index + 1]]


def make_plan(
    lengths: Array,
    *,
    tokens: int,
    sequences: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    filler: int | None = None,
    rows: int | None = None,
    groups: Array | None = None,
) -> Plan:
    """Fill packs one after the other with shuffled sequences: at most `tokens` and at most `sequences` in each.

    With `filler`, what a pack leaves of its tokens counts as sequences too, of that many tokens each; `rows` is then how
    many that are not filler there may be. Sequences of the same number in `groups` stay together, in their order.

    >>> plan = make_plan(np.array([3, 5, 2]), tokens=8, sequences=4, shuffle=False)
    >>> [plan.pack(i).tolist() for i in range(len(plan))]
    [[0, 1], [2]]
    >>> plan = make_plan(np.array([3, 5, 2]), tokens=8, sequences=4, shuffle=False, groups=np.array([0, 1, 0]))
    >>> [plan.pack(i).tolist() for i in range(len(plan))]
    [[0, 2], [1]]
    """
    lengths, most = np.asarray(lengths, dtype=np.int64), min(sequences, rows or sequences)
    members, sizes, totals = np.arange(len(lengths)), np.ones_like(lengths), lengths  # every sequence is a group
    if groups is not None:
        _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        members = np.argsort(group, kind="stable")
        totals = np.bincount(group, lengths, len(sizes)).astype(np.int64)
    if len(totals) and (int(totals.max()) > tokens or int(sizes.max()) > most):
        largest = int(np.argmax(totals)) if int(totals.max()) > tokens else int(np.argmax(sizes))
        what = "a sequence" if sizes[largest] == 1 else f"a group of {sizes[largest]} sequences"
        limit = f"{tokens}" if sizes[largest] <= most else f"{tokens} in {most} sequences"
        raise PretuneError(f"{what} of {int(totals[largest])} tokens does not fit a pack of {limit}")
    order = permutation(len(totals), seed, "plan", epoch) if shuffle else np.arange(len(totals))
    ends, counts = (np.concatenate([[0], np.cumsum(x[order])]) for x in (totals, sizes))  # of tokens, of sequences
    bounds = [0]
    while bounds[-1] < len(order):
        first = bounds[-1]
        fits = min(
            int(np.searchsorted(x, x[first] + limit, side="right")) - 1 for x, limit in ((ends, tokens), (counts, most))
        )
        if filler is not None:
            left = tokens - (ends[first + 1 : fits + 1] - ends[first])
            # Sequences and filler together, which grow with each sequence, for none is longer than one of filler.
            slots = counts[first + 1 : fits + 1] - counts[first] + -(-left // filler)
            fits = first + max(1, int(np.searchsorted(slots, sequences, side="right")))
        bounds.append(fits)
    starts = np.cumsum(sizes) - sizes
    return Plan(members[spans_to_indices(starts[order], sizes[order])], counts[bounds])


@dataclass(frozen=True)
class Window:
    """One batch of lanes: spans of the store, lane after lane; a lane's spans follow one another in time."""

    starts: Array  # (spans,) first token
    lengths: Array  # (spans,)
    lane: Array  # (spans,)
    fresh: Array  # (spans,) True where a document begins here, so that the state must be reset


@dataclass(frozen=True)
class Lanes:
    """Stateful data: lane i of batch t + 1 goes on where lane i of batch t ended.

    The documents, in shuffled order and end to end, are cut into equally long lanes, and these into windows of about the
    same length, none longer than `window`.
    """

    starts: Array  # (documents,) where each document starts in the store, in the order of the stream
    stream: Array  # (documents + 1,) where each starts in the stream
    lanes: int
    window: int

    def __len__(self) -> int:
        longest = -(-int(self.stream[-1]) // self.lanes)
        return -(-longest // self.window)

    @property
    def shortest(self) -> int:
        """Tokens that every window has."""
        return int(self.stream[-1]) // self.lanes // max(1, len(self))

    def batch(self, index: int) -> Window:
        """The windows of all lanes at one time."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        starts, lengths, lanes, fresh = [], [], [], []
        total, count = int(self.stream[-1]), len(self)
        for lane in range(self.lanes):
            begin, size = lane * total // self.lanes, (lane + 1) * total // self.lanes - lane * total // self.lanes
            position, end = (begin + size * time // count for time in (index, index + 1))
            while position < end:
                document = int(np.searchsorted(self.stream, position, side="right")) - 1
                inside = position - int(self.stream[document])
                length = min(end, int(self.stream[document + 1])) - position
                starts.append(int(self.starts[document]) + inside)
                lengths.append(length)
                lanes.append(lane)
                fresh.append(inside == 0)
                position += length
        return Window(np.array(starts), np.array(lengths), np.array(lanes), np.array(fresh, dtype=bool))


def make_lanes(starts: Array, lengths: Array, *, lanes: int, window: int, draws: Draws) -> Lanes:
    """Lanes over documents that start at `starts` in the store and are `lengths` long."""
    order = draws.permutation(len(lengths), "lanes")
    order = order[lengths[order] > 0]
    stream = np.concatenate([[0], np.cumsum(lengths[order])])
    return Lanes(np.asarray(starts)[order], stream, lanes, window)
