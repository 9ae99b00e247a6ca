"""Cut stored documents into spans of whole sentences, and spans into two parts."""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.store.store import Store


def cut_documents(
    store: Store, documents: Array, length: int, draws: EpochRandom, short: float = 0.0, from_both_ends: bool = False
) -> tuple[Array, Array, Array]:
    """Cut documents into spans of whole sentences, of at most `length` tokens each.

    Return the first token, the length and the document of each span.

    In every epoch except the first, the first span of each document has a shorter random maximum length, so that
    documents are cut at different places in each epoch. Sentences longer than `length` are split. A share `short` of
    the documents, chosen at random, is cut into shorter spans: the maximum length is random, but at least two sentences
    are kept together if they fit into `length` tokens. A sentence that does not fit into a span begins the next span,
    so the first sentences of spans are longer on average. With `from_both_ends`, a random half of the documents is cut
    from the end instead, so that the lengths of sentences do not reveal their order.
    """
    units, first_unit = _units(store, documents, length)  # bounds of split sentences; first of each document
    sizes = np.diff(first_unit)
    reverse = draws.uniform("from the end", documents) < 0.5 if from_both_ends else np.zeros(len(documents), dtype=bool)
    # Units in the order in which they are cut.
    reversed_order = np.repeat(first_unit[:-1] + first_unit[1:] - 1, sizes) - np.arange(len(units))
    order = np.where(np.repeat(reverse, sizes), reversed_order, np.arange(len(units)))
    ends = np.cumsum((units[:, 1] - units[:, 0])[order])
    starts = np.append(0, ends[:-1])[: len(ends)]
    # For each unit: the first later unit that does not fit into the same span, or the end of the document.
    owner_end = np.repeat(first_unit[1:], sizes)
    reach = np.minimum(np.searchsorted(ends, starts + length, side="right"), owner_end)
    if short > 0:
        limits = 2 + draws.integers(max(1, length - 1), "short span", documents)
        limits = np.repeat(np.where(draws.uniform("short", documents) < short, limits, length), sizes)
        fitting = np.searchsorted(ends, starts + limits, side="right")
        reach = np.minimum(reach, np.maximum(fitting, np.arange(len(units)) + 2))
    position = first_unit[:-1].copy()
    unfinished = np.flatnonzero(position < first_unit[1:])
    first_length = np.full(len(position), length)
    if draws.epoch:
        first_length = length // 4 + draws.integers(length - length // 4, "first span", documents)
    spans = [np.empty((3, 0), dtype=np.int64)]  # first unit, end unit and document of each span
    while len(unfinished):  # one span per iteration of every document that has text left
        begin = position[unfinished]
        end = reach[begin]
        if len(spans) == 1:
            end = np.clip(np.searchsorted(ends, starts[begin] + first_length[unfinished], side="right"), begin + 1, end)
        spans.append(np.stack([begin, end, unfinished]))
        position[unfinished] = end
        unfinished = unfinished[end < first_unit[1:][unfinished]]
    begin, end, owner = np.concatenate(spans, axis=1)
    bounds_sum = first_unit[owner] + first_unit[owner + 1]
    begin, end = np.where(reverse[owner], [bounds_sum - end, bounds_sum - begin], [begin, end])
    in_order = np.lexsort((begin, owner))
    begin, end, owner = begin[in_order], end[in_order], owner[in_order]
    first_token = units[begin, 0]
    return first_token, units[end - 1, 1] - first_token, documents[owner]


def _units(store: Store, documents: Array, length: int) -> tuple[Array, Array]:
    """Return the bounds of the sentences of documents, and the index of the first sentence of each document.

    The bounds, (sentences, 2), are the first token of each sentence and the token after its last one. The indices,
    (documents + 1,), refer to rows of the bounds. Sentences with more than `length` tokens are split into several.
    """
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


def split_at_sentence(store: Store, starts: Array, lengths: Array, draws: EpochRandom) -> Array:
    """Split each span at a random sentence boundary inside it, and return the length of its first part.

    The length is 0 for a span without a sentence boundary inside. `starts` and `lengths` have the first token and the
    length of each span.
    """
    sentence = store.sentence_offsets
    low = np.searchsorted(sentence, starts, side="right")  # first boundary after the start
    high = np.searchsorted(sentence, starts + lengths, side="left")  # first boundary at or after the end
    choices = high - low
    pick = low + draws.integers(np.maximum(choices, 1), "split", starts)
    return np.where(choices > 0, sentence[np.minimum(pick, len(sentence) - 1)] - starts, 0)
