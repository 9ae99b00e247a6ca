"""Arrangements that several objectives share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pretune.objectives.objective import Data
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.document_spans import cut_documents
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch

Array = np.ndarray[Any, np.dtype[Any]]


def spans_arrangement(data: Data, length: int, draws: Draws) -> Arrangement:
    """Documents in spans of whole sentences, one to a sequence; with the template they have at most `length` tokens."""
    if data.store is None:
        raise PretuneError("this objective reads raw text; give it a corpus or a store, not labeled rows")
    template = data.template.for_documents
    room = length - template.overhead(pair=False)
    if room < 1:
        raise PretuneError(f"sequences of {length} tokens leave no room for text; ask for longer ones")
    starts, lengths, documents = cut_documents(data.store, data.documents, room, draws)
    made = Arrangement(data.store, data.tokenizer, template, starts[:, None], lengths[:, None])
    return in_languages(made, data, documents, draws)


def spans_epoch(data: Data, packing: Packing, draws: Draws) -> Epoch:
    """The same, shuffled into packs."""
    return plan_epoch(spans_arrangement(data, packing.length, draws), packing, draws)


def in_languages(arrangement: Arrangement, data: Data, documents: Array, draws: Draws) -> Arrangement:
    """Sequences, given the documents (m,) they are from, with languages as a column, and small languages more often."""
    if not data.languages:
        return arrangement
    assert data.store is not None
    numbers = np.array([data.languages[name] for name in data.store.languages])
    spoken = np.broadcast_to(numbers[data.store.document_languages[documents]][:, None], arrangement.spans.shape)
    made = replace(arrangement, columns=arrangement.columns | {"language": spoken})
    return made.choose(smoothed(spoken[:, 0], data.exponent, draws))


def smoothed(groups: Array, power: float, draws: Draws) -> Array:
    """As many members as there are, drawn so that a group comes by its share to a power (Lample and Conneau, 2019).

    A group that comes more often than it has members is gone through so many times, one that comes less often in part,
    another part each epoch.

    >>> np.bincount(np.array([0] * 16 + [1] * 4)[smoothed(np.array([0] * 16 + [1] * 4), 0.5, Draws(0))]).tolist()
    [13, 7]
    """
    _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if power == 1 or len(counts) < 2:
        return np.arange(len(groups))
    wanted = counts**power / (counts**power).sum() * len(groups)
    ends = np.round(np.cumsum(wanted)).astype(np.int64)
    wanted = np.maximum(1, np.diff(ends, prepend=0))
    chance = draws.uniform("smoothed", np.arange(len(groups)))
    chosen = []
    for number, (count, times) in enumerate(zip(counts, wanted, strict=True)):
        members = np.flatnonzero(groups == number)
        rest = members[np.argsort(chance[members], kind="stable")][: times % count]
        chosen += [np.tile(members, times // count), np.sort(rest)]
    return np.concatenate(chosen)
