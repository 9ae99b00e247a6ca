"""Holding out: which text a training learns from, and which it is evaluated on."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.runtime.randomness import hashed
from pretune.text.store.store import Store

FEWEST = 8  # documents, rows or passages to evaluate on, where there are ten times as many
PASSAGE = 512  # tokens of a passage, at most about

Array = np.ndarray[Any, np.dtype[Any]]


def split(count: int, share: float) -> tuple[Array, Array]:
    """Split so many rows into those to train on and those to evaluate on, the same for every seed, by number.

    These are the share asked for, but of few rows a tenth at least.

    >>> [len(part) for part in split(1000, 0.01)], [len(part) for part in split(50, 0.01)]
    ([990, 10], [45, 5])
    """
    wanted = max(round(share * count), min(FEWEST, count // 10)) if share > 0 else 0
    order = np.argsort(hashed(0, "held out", np.arange(count)))
    return np.sort(order[wanted:]), np.sort(order[:wanted])


def hold_out(store: Store, share: float) -> tuple[Store, Array, Array]:
    """Split a store into documents to train on and documents to evaluate on, the same for every seed.

    Where there are fewer than ten documents, passages of them are held out instead: runs of whole sentences, which are documents
    of the store that comes back. Text of fewer than ten sentences is not split.
    """
    learned, judged = split(store.documents, share)
    if share <= 0 or len(judged):
        return store, learned, judged
    starts = passages(store, int(np.clip(store.tokens // (10 * FEWEST), 1, PASSAGE)))
    _, chosen = split(len(starts), share)
    ends = np.append(starts[1:], store.sentences)
    cut = store.cut_at(np.concatenate([starts[chosen], ends[chosen]]))
    judged = np.isin(cut.document_offsets[:-1], starts[chosen])
    return cut, np.flatnonzero(~judged), np.flatnonzero(judged)


def passages(store: Store, tokens: int) -> Array:
    """Return the first sentence of every passage: a run of sentences of one document, of about so many tokens."""
    sentences, documents = store.sentence_offsets[:-1], store.document_offsets
    document = np.searchsorted(documents, np.arange(len(sentences)), side="right") - 1
    number = (sentences - sentences[documents[document]]) // tokens  # of the passage within its document
    first = np.ones(len(sentences), dtype=bool)
    first[1:] = (np.diff(document) > 0) | (np.diff(number) > 0)
    return np.flatnonzero(first)
