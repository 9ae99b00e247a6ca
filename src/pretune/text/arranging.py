"""Arranging stored documents: into spans of whole sentences, and into pairs of neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.randomness import Draws
from pretune.text.store import Store

Array = np.ndarray[Any, np.dtype[Any]]


def cut_documents(
    store: Store, documents: Array, length: int, draws: Draws, short: float = 0.0
) -> tuple[Array, Array, Array]:
    """Cut documents into spans of whole sentences, at most `length` tokens each: starts, lengths, document of each.

    Each epoch but the first begins a document with a shorter span of random length, so that the cuts fall elsewhere.
    Sentences longer than `length` are cut. A share `short` of the documents is cut into shorter spans: each ends with the
    sentence that brings it to a random length, its second at the earliest.
    """
    units, first_unit = _units(store, documents, length)  # bounds of sentences, long ones cut; where documents start
    # From each unit: the first unit that no longer fits into the same span, or the document's end.
    sizes = np.diff(first_unit)
    owner_end = np.repeat(first_unit[1:], sizes)
    reach = np.minimum(np.searchsorted(units[:, 1], units[:, 0] + length, side="right"), owner_end)
    if short > 0:
        aims = 2 + draws.integers(max(1, length - 1), "short span", documents)
        aims = np.repeat(np.where(draws.uniform("short", documents) < short, aims, length), sizes)
        enough = np.searchsorted(units[:, 1], units[:, 0] + aims, side="left") + 1
        reach = np.minimum(reach, np.maximum(enough, np.arange(len(units)) + 2))
    now = first_unit[:-1].copy()
    alive = np.flatnonzero(now < first_unit[1:])
    room = np.full(len(now), length)
    if draws.epoch:
        room = length // 4 + draws.integers(length - length // 4, "first span", documents)
    begins, ends, owners = [], [], []
    first = True
    while len(alive):  # one span of every document that has text left, all documents at once
        begin = now[alive]
        end = reach[begin]
        if first:
            short = np.searchsorted(units[:, 1], units[begin, 0] + room[alive], side="right")
            end = np.clip(short, begin + 1, end)
            first = False
        begins.append(begin)
        ends.append(end)
        owners.append(alive)
        now[alive] = end
        alive = alive[end < first_unit[1:][alive]]
    if not begins:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    begin, end, owner = (np.concatenate(x) for x in (begins, ends, owners))
    order = np.lexsort((begin, owner))
    begin, end, owner = begin[order], end[order], owner[order]
    starts = units[begin, 0]
    return starts, units[end - 1, 1] - starts, documents[owner]


def _units(store: Store, documents: Array, length: int) -> tuple[Array, Array]:
    """(u, 2) token bounds of the sentences of some documents, long ones cut to `length`, and where each document starts."""
    sentence, document = store.sentence_offsets, store.document_offsets
    counts = document[documents + 1] - document[documents]
    ends = np.cumsum(counts)
    index = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(document[documents] - (ends - counts), counts)
    begin, end = sentence[index], sentence[index + 1]
    pieces = np.maximum(1, -(-(end - begin) // length))
    owner = np.repeat(np.arange(len(documents)), counts)
    if (pieces > 1).any():
        step = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin, end, owner = (np.repeat(x, pieces) for x in (begin, end, owner))
        begin = begin + step * length
        end = np.minimum(end, begin + length)
    first = np.searchsorted(owner, np.arange(len(documents) + 1))
    return np.stack([begin, end], axis=1), first


def split_at_sentence(store: Store, starts: Array, lengths: Array, draws: Draws) -> Array:
    """For each span, a random sentence bound inside it, as the length of the first part; 0 where there is none."""
    sentence = store.sentence_offsets
    low = np.searchsorted(sentence, starts, side="right")  # the first bound after the start
    high = np.searchsorted(sentence, starts + lengths, side="left")  # the first at or after the end
    choices = high - low
    pick = low + draws.integers(np.maximum(choices, 1), "split", starts)
    return np.where(choices > 0, sentence[np.minimum(pick, len(sentence) - 1)] - starts, 0)
