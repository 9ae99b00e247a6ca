"""Held-out data: split rows or text into a part to train on and a part to evaluate on."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.randomness import random_bits
from pretune.text.store.store import Store

FEWEST = 8  # minimum held-out documents, rows, or passages, if there are ten times as many
PASSAGE = 512  # approximate maximum tokens of a passage


def split_rows(count: int, share: float) -> tuple[Array, Array]:
    """Return the indices of the rows to train on and of those to evaluate on, split at random with a fixed seed.

    The fraction `share` of the rows is for evaluation, but at least 8 rows, or a tenth if there are fewer than 80 rows.

    >>> [len(part) for part in split_rows(1000, 0.01)], [len(part) for part in split_rows(50, 0.01)]
    ([990, 10], [45, 5])
    """
    wanted = max(round(share * count), min(FEWEST, count // 10)) if share > 0 else 0
    order = np.argsort(random_bits(0, "held out", np.arange(count)))
    return np.sort(order[wanted:]), np.sort(order[:wanted])


def hold_out_documents(store: Store, share: float) -> tuple[Store, Array, Array]:
    """Split the documents of a token store; return the store, and the indices of training and of evaluation documents.

    The fraction `share` of the documents is for evaluation. If there are too few documents, they are cut into passages
    first, and the returned store has these passages as its documents.
    """
    train, held_out = split_rows(store.documents, share)
    if share <= 0 or len(held_out):
        return store, train, held_out
    starts = passages(store, int(np.clip(store.tokens // (10 * FEWEST), 1, PASSAGE)))
    _, chosen = split_rows(len(starts), share)
    ends = np.append(starts[1:], store.sentences)
    cut = store.split_documents_at(np.concatenate([starts[chosen], ends[chosen]]))
    is_held_out = np.isin(cut.document_offsets[:-1], starts[chosen])
    return cut, np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def passages(store: Store, tokens: int) -> Array:
    """Cut the documents of a store into passages of about `tokens` tokens.

    Return the index, in the store, of the first sentence of each passage.
    """
    sentences, documents = store.sentence_offsets[:-1], store.document_offsets
    document = np.searchsorted(documents, np.arange(len(sentences)), side="right") - 1
    number = (sentences - sentences[documents[document]]) // tokens  # index of the passage within its document
    first = np.ones(len(sentences), dtype=bool)
    first[1:] = (np.diff(document) > 0) | (np.diff(number) > 0)
    return np.flatnonzero(first)
