"""Arranging stored documents: into spans of whole sentences, and into pairs of neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.runtime.randomness import Draws
from pretune.text.store.store import Store

Array = np.ndarray[Any, np.dtype[Any]]


def cut_documents(
    store: Store, documents: Array, length: int, draws: Draws, short: float = 0.0, from_both_ends: bool = False
) -> tuple[Array, Array, Array]:
    """Cut documents into spans of whole sentences, at most `length` tokens each: starts, lengths, document of each.

    Each epoch but the first begins a document with a shorter span of random length, so that the cuts fall elsewhere.
    Sentences longer than `length` are cut. A share `short` of the documents is cut into shorter spans, of the sentences that
    fit into a random length, two at least.

    A sentence that no longer fits into a span begins the next one, so that first sentences are longer than others.
    `from_both_ends` cuts half of the documents, other ones in each epoch, from their end: then first and last sentences are
    longer alike, and lengths say nothing about the order of sentences.
    """
    units, first_unit = _units(store, documents, length)  # bounds of sentences, long ones cut; where documents start
    sizes = np.diff(first_unit)
    back = draws.uniform("from the end", documents) < 0.5 if from_both_ends else np.zeros(len(documents), dtype=bool)
    # Units in the order in which they are cut, end to end.
    turned = np.repeat(first_unit[:-1] + first_unit[1:] - 1, sizes) - np.arange(len(units))
    order = np.where(np.repeat(back, sizes), turned, np.arange(len(units)))
    ends = np.cumsum((units[:, 1] - units[:, 0])[order])
    starts = np.append(0, ends[:-1])[: len(ends)]
    # From each unit: the first unit that no longer fits into the same span, or the document's end.
    owner_end = np.repeat(first_unit[1:], sizes)
    reach = np.minimum(np.searchsorted(ends, starts + length, side="right"), owner_end)
    if short > 0:
        aims = 2 + draws.integers(max(1, length - 1), "short span", documents)
        aims = np.repeat(np.where(draws.uniform("short", documents) < short, aims, length), sizes)
        fitting = np.searchsorted(ends, starts + aims, side="right")
        reach = np.minimum(reach, np.maximum(fitting, np.arange(len(units)) + 2))
    now = first_unit[:-1].copy()
    alive = np.flatnonzero(now < first_unit[1:])
    room = np.full(len(now), length)
    if draws.epoch:
        room = length // 4 + draws.integers(length - length // 4, "first span", documents)
    begun, ended, owners = [], [], []
    first = True
    while len(alive):  # one span of every document that has text left, all documents at once
        begin = now[alive]
        end = reach[begin]
        if first:
            end = np.clip(np.searchsorted(ends, starts[begin] + room[alive], side="right"), begin + 1, end)
            first = False
        begun.append(begin)
        ended.append(end)
        owners.append(alive)
        now[alive] = end
        alive = alive[end < first_unit[1:][alive]]
    if not begun:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    begin, end, owner = (np.concatenate(x) for x in (begun, ended, owners))
    whole = first_unit[owner] + first_unit[owner + 1]
    begin, end = np.where(back[owner], [whole - end, whole - begin], [begin, end])
    in_order = np.lexsort((begin, owner))
    begin, end, owner = begin[in_order], end[in_order], owner[in_order]
    found = units[begin, 0]
    return found, units[end - 1, 1] - found, documents[owner]


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
