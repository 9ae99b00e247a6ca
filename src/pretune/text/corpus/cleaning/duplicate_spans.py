"""Remove all but the first of any span of three sentences that occurs more than once (Raffel et al., 2020, section 2.2).

Memory: 8 bytes per sentence of the corpus, and about 40 more while the spans are sorted.
"""

from __future__ import annotations

import numpy as np

from pretune.runtime.arrays import Array
from pretune.text.corpus.cleaning.interval_cover import cover
from pretune.text.corpus.ngram_hashes import NgramHasher, hash_text
from pretune.text.corpus.sentences import split_sentences

SPAN_SENTENCES = 3


def sentence_hashes(text: str, language: str) -> Array:
    """Return a 64-bit hash of each sentence of a text, (sentences,), ignoring case and the amount of whitespace."""
    spans = split_sentences(text, language)
    return np.array([hash_text(" ".join(text[a:b].casefold().split())) for a, b in spans], dtype=np.uint64)


def repeated_sentences(hashes: Array, counts: Array) -> Array:
    """Return a mask of the sentences to remove, because they belong to a span of three that occurred before.

    `hashes` (sentences,) has the hashes of the sentences of all documents, concatenated; `counts` (documents,) has the
    number of sentences of each document. A sentence is kept if it also belongs to the first occurrence of a repeated
    span.
    """
    spans = NgramHasher.runs(hashes, SPAN_SENTENCES)
    owner = np.repeat(np.arange(len(counts)), counts)
    inside = np.flatnonzero(owner[: len(spans)] == owner[SPAN_SENTENCES - 1 :])  # spans do not cross documents
    _, first, times = np.unique(spans[inside], return_index=True, return_counts=True)
    again = np.ones(len(inside), dtype=bool)
    again[first] = False
    kept = np.zeros(len(inside), dtype=bool)
    kept[first[times > 1]] = True
    covered, protected = (cover(inside[mask], SPAN_SENTENCES, len(hashes)) for mask in (again, kept))
    return np.asarray(covered & ~protected)
