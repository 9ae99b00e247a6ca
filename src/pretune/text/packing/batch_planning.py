"""Plan which sequences share a pack, as pure functions of lengths, seed and epoch.

A pack is a set of sequences that are concatenated without padding. A training step consumes a range of packs, which are
divided among processes and micro-batches, so the order of the data does not depend on the number of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom, permutation
from pretune.text.spans import span_indices


@dataclass(frozen=True)
class PackPlan:
    """An assignment of sequences to packs, which are batches of sequences that lie end to end without padding.

    The sequences with the indices order[bounds[k] : bounds[k + 1]] are in pack k.
    """

    order: Array  # (sequences,)
    bounds: Array  # (packs + 1,)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pack(self, index: int) -> Array:
        """Return the indices of the sequences in the pack with the given index."""
        if not 0 <= index < len(self):
            raise IndexError(f"pack index {index} is out of range; choose an index from 0 to {len(self) - 1}")
        return self.order[self.bounds[index] : self.bounds[index + 1]]


def plan_packs(
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
) -> PackPlan:
    """Assign sequences to packs (batches without padding) of at most `tokens` tokens and `sequences` sequences.

    The sequences are taken in an order that depends on `seed` and `epoch` or, without `shuffle`, in their own order.

    Parameters
    ----------
    lengths
        The number of tokens of each sequence, (sequences,).
    filler
        For packs of fixed shapes: the length of the padding sequences that fill up a pack and count toward `sequences`.
    rows
        With `filler`, the maximum number of sequences per pack that are not padding.
    groups
        An integer per sequence, (sequences,); sequences with equal integers stay in one pack, in their order.

    >>> plan = plan_packs(np.array([3, 5, 2]), tokens=8, sequences=4, shuffle=False)
    >>> [plan.pack(i).tolist() for i in range(len(plan))]
    [[0, 1], [2]]
    >>> plan = plan_packs(np.array([3, 5, 2]), tokens=8, sequences=4, shuffle=False, groups=np.array([0, 1, 0]))
    >>> [plan.pack(i).tolist() for i in range(len(plan))]
    [[0, 2], [1]]
    """
    lengths, limit = np.asarray(lengths, dtype=np.int64), min(sequences, rows or sequences)
    members, sizes, totals = np.arange(len(lengths)), np.ones_like(lengths), lengths  # one group per sequence
    if groups is not None:
        _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        members = np.argsort(group, kind="stable")
        totals = np.bincount(group, lengths, len(sizes)).astype(np.int64)
    if len(totals) and (int(totals.max()) > tokens or int(sizes.max()) > limit):
        largest = int(np.argmax(totals)) if int(totals.max()) > tokens else int(np.argmax(sizes))
        what = "a sequence" if sizes[largest] == 1 else f"a group of {sizes[largest]} sequences"
        size = f"{tokens} tokens" if sizes[largest] <= limit else f"{tokens} tokens in {limit} sequences"
        what += f" with {totals[largest]} tokens"
        raise PretuneError(
            f"{what} does not fit into a batch of {size}; choose larger batches or a smaller maximum length (batch.max_length)"
        )
    order = permutation(len(totals), seed, "plan", epoch) if shuffle else np.arange(len(totals))
    # Running totals of tokens and of sequences.
    ends, counts = (np.concatenate([[0], np.cumsum(x[order])]) for x in (totals, sizes))
    bounds = [0]
    while bounds[-1] < len(order):
        first = bounds[-1]
        totals_and_limits = ((ends, tokens), (counts, limit))
        fits = min(int(np.searchsorted(x, x[first] + most, side="right")) - 1 for x, most in totals_and_limits)
        if filler is not None:
            left = tokens - (ends[first + 1 : fits + 1] - ends[first])
            # The total of sequences and padding grows with each sequence, since none is longer than a padding sequence.
            slots = counts[first + 1 : fits + 1] - counts[first] + -(-left // filler)
            fits = first + max(1, int(np.searchsorted(slots, sequences, side="right")))
        bounds.append(fits)
    starts = np.cumsum(sizes) - sizes
    return PackPlan(members[span_indices(starts[order], sizes[order])], counts[bounds])


@dataclass(frozen=True)
class StreamWindow:
    """The tokens of all text streams at one time step, as spans of a corpus; each row of a batch is a stream.

    For each span, `starts` and `lengths` have its first token and its length, `stream` the index of its stream, and
    `document_start` whether a document begins there, so that the recurrent state must be reset.
    """

    starts: Array  # (spans,) first token
    lengths: Array  # (spans,)
    stream: Array  # (spans,) index of the stream
    document_start: Array  # (spans,) True where a document begins, so the recurrent state must be reset


@dataclass(frozen=True)
class TextStreams:
    """Streams of contiguous text for stateful training (truncated BPTT): each batch continues the previous one.

    The documents, shuffled and concatenated, are cut into `num_streams` equally long streams, and each stream into
    windows of about the same length, at most `window` tokens. A batch consists of one window of each stream.
    """

    starts: Array  # (documents,) first token of each document in the store, in shuffled order
    bounds: Array  # (documents + 1,) where each document starts in the concatenation
    num_streams: int
    window: int

    def __len__(self) -> int:
        longest = -(-int(self.bounds[-1]) // self.num_streams)
        return -(-longest // self.window)

    @property
    def shortest(self) -> int:
        """Return the smallest number of tokens that any window of the text streams has."""
        return int(self.bounds[-1]) // self.num_streams // max(1, len(self))

    def batch(self, index: int) -> StreamWindow:
        """Return the windows of all streams at the time step `index`, as spans of tokens."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch index {index} is out of range; choose an index from 0 to {len(self) - 1}")
        spans = []
        total, count = int(self.bounds[-1]), len(self)
        for stream in range(self.num_streams):
            begin, stop = (number * total // self.num_streams for number in (stream, stream + 1))
            position, end = (begin + (stop - begin) * time // count for time in (index, index + 1))
            while position < end:
                document = int(np.searchsorted(self.bounds, position, side="right")) - 1
                inside = position - int(self.bounds[document])
                length = min(end, int(self.bounds[document + 1])) - position
                spans.append((int(self.starts[document]) + inside, length, stream, inside == 0))
                position += length
        starts, lengths, streams, document_start = np.array(spans, dtype=np.int64).reshape(-1, 4).T
        return StreamWindow(starts, lengths, streams, document_start.astype(bool))


def build_streams(starts: Array, lengths: Array, *, num_streams: int, window: int, draws: EpochRandom) -> TextStreams:
    """Concatenate documents in random order, and cut them into `num_streams` streams of equal length.

    `starts` and `lengths` have the first token and the length of each document; each stream is cut into windows of at
    most `window` tokens; `draws` determines the order.
    """
    order = draws.permutation(len(lengths), "lanes")
    order = order[lengths[order] > 0]
    bounds = np.concatenate([[0], np.cumsum(lengths[order])])
    return TextStreams(np.asarray(starts)[order], bounds, num_streams, window)
