"""Shared ways to cut documents into sequences, and resampling of languages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pretune.objectives.objective import Data, Objective
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.document_spans import cut_documents
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch


def arrange_document_spans(data: Data, length: int, draws: EpochRandom) -> Arrangement:
    """Cut documents into spans of whole sentences of at most `length` tokens each, special tokens included."""
    store = data.require_store("this objective")
    template = data.template.document_template
    text_length = length - template.num_special_tokens(pair=False)
    if text_length < 1:
        raise PretuneError(f"sequences of {length} tokens leave no room for text; increase batch.max_length")
    starts, lengths, documents = cut_documents(store, data.documents, text_length, draws)
    arrangement = Arrangement(store, data.tokenizer, template, starts[:, None], lengths[:, None])
    return resample_languages(arrangement, data, documents, draws)


def document_span_epoch(data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
    """Cut documents into spans of whole sentences, and shuffle the spans into packed batches."""
    return plan_epoch(arrange_document_spans(data, packing.length, draws), packing, draws)


class ReadsDocuments(Objective):
    """Base class of objectives that read documents in spans of whole sentences."""

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences, and shuffle the spans into packed batches."""
        return document_span_epoch(data, packing, draws)


def resample_languages(arrangement: Arrangement, data: Data, documents: Array, draws: EpochRandom) -> Arrangement:
    """Resample the sequences of `arrangement` so that small languages are more frequent; label each with its language.

    `documents` (m,) gives the document of each sequence. If there is only one language, nothing changes.
    """
    if not data.languages:
        return arrangement
    store = data.require_store("this objective")
    numbers = np.array([data.languages[name] for name in store.languages])
    language = np.broadcast_to(numbers[store.document_languages[documents]][:, None], arrangement.spans.shape)
    labeled = replace(arrangement, columns=arrangement.columns | {"language": language})
    return labeled.choose(resample_groups(language[:, 0], data.language_alpha, draws))


def resample_groups(groups: Array, power: float, draws: EpochRandom) -> Array:
    """Return indices into `groups`, resampled so that a group's share is proportional to its size to the power `power`.

    `groups` has the group of each item. The number of indices stays about the same (Lample and Conneau, 2019). Of a
    group that loses items, different items are left out in each epoch.

    >>> np.bincount(np.array([0] * 16 + [1] * 4)[resample_groups(np.array([0] * 16 + [1] * 4), 0.5, EpochRandom(0))]).tolist()
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
