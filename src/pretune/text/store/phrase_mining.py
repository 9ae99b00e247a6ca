"""Find collocations in a token store: word pairs and triples with high pointwise mutual information."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.text.store.store import Store
from pretune.text.tokenizers.phrase_matching import phrase_fingerprints, word_fingerprints

LONGEST = 3  # words of a phrase
CHUNK = 1 << 20  # tokens counted at once
KINDS = 2_000_000  # distinct words, pairs or triples in a table; beyond that the rarer half is dropped


@dataclass
class NgramCounts:
    """Counts of n-grams in bounded memory, with one position of each n-gram in the store.

    `keys` are the fingerprints (hashes of the tokens) of the n-grams, sorted; `times` are their counts; `facts` has,
    for each n-gram, a position, the length in tokens, and the fingerprints of its words. With more than `limit`
    n-grams, the rarest are dropped.
    """

    limit: int
    keys: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint64))  # sorted
    times: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # One row per key: position, length in tokens, fingerprints of the words.
    facts: Array = field(default_factory=lambda: np.empty((0, 1), dtype=np.uint64))

    def add(self, keys: Array, facts: Array) -> None:
        """Count one occurrence of each n-gram in `keys`, an array of fingerprints.

        `facts` has a row per occurrence: the position, the length in tokens, and the fingerprints of the words.
        """
        both = np.concatenate([self.keys, keys])
        times = np.concatenate([self.times, np.ones(len(keys), dtype=np.int64)])
        known = np.concatenate([self.facts, facts]) if len(self.facts) else facts
        self.keys, where, group = np.unique(both, return_index=True, return_inverse=True)
        self.times = np.bincount(group, weights=times).astype(np.int64)
        self.facts = known[where]
        if len(self.keys) > self.limit:
            kept = np.sort(np.argsort(-self.times, kind="stable")[: self.limit // 2])
            self.keys, self.times, self.facts = self.keys[kept], self.times[kept], self.facts[kept]

    def counts_of(self, keys: Array) -> Array:
        """Return the count of each n-gram in `keys`, an array of fingerprints; 0 for n-grams that were not counted."""
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.times[place], 0)


def find_collocations(
    store: Store,
    *,
    max_phrases: int = 10_000,
    min_count: int = 10,
    min_pmi: float = 3.0,
    max_tokens: float = 1e8,
    limit: int = KINDS,
) -> list[dict[str, Any]]:
    """Return up to `max_phrases` phrases of a token store, each with its text, count, and PMI per word boundary.

    A phrase is a pair or triple of words within a sentence that occurs at least `min_count` times and has a pointwise
    mutual information (PMI) of at least `min_pmi` bits (3 bits: the phrase is 8 times as frequent as if its words were
    independent). Phrases are sorted by the product of count and PMI. At most the first `max_tokens` tokens of the store
    are read; if there are more than `limit` distinct n-grams, the counts of the rarest are dropped.
    """
    tables = {size: NgramCounts(limit) for size in range(1, LONGEST + 1)}
    sentences = store.sentence_offsets
    end = int(sentences[np.searchsorted(sentences, min(max_tokens, store.tokens), side="right") - 1])
    start = 0
    while start < end:
        stop = int(sentences[np.searchsorted(sentences, start + CHUNK, side="right") - 1])
        stop = min(stop if stop > start else start + CHUNK, end)  # a sentence longer than a chunk is split
        _count(store, start, stop, tables)
        start = stop
    words = tables[1]
    if not len(words.keys):
        raise PretuneError(f"{store.folder}: the store contains no words to find phrases in; prepare it from more text")
    total = float(words.times.sum())
    found: list[tuple[float, float, int, int, int]] = []
    for size in range(2, LONGEST + 1):
        table = tables[size]
        often = table.times >= min_count
        if not often.any():
            continue
        times, facts = table.times[often], table.facts[often]
        alone = np.stack([words.counts_of(facts[:, 2 + word]) for word in range(size)])
        with np.errstate(divide="ignore"):
            chance = np.log2(alone / total).sum(0)  # log2 probability of independent words meeting
        shared = (np.log2(times / total) - chance) / (size - 1)
        good = (alone > 0).all(0) & (shared >= min_pmi)
        found += zip(
            (times * shared)[good].tolist(), shared[good].tolist(), times[good].tolist(), *facts[good][:, :2].T.tolist(),
            strict=True,
        )  # fmt: skip
    rows: dict[str, dict[str, Any]] = {}
    for _, shared_bits, occurrences, place, length in sorted(found, reverse=True):
        text = _text(store, place, length)
        if text is not None and text not in rows:
            rows[text] = {"phrase": text, "count": occurrences, "pmi": round(shared_bits, 2)}
        if len(rows) == max_phrases:
            break
    return list(rows.values())


def _count(store: Store, start: int, stop: int, tables: dict[int, NgramCounts]) -> None:
    """Count the words, word pairs and word triples in the tokens from `start` to `stop` of a store.

    `tables` maps the number of words, such as 2 for pairs, to the table that counts these n-grams.
    """
    ids = store.read(start, stop)
    starts = store.gather_words(np.array([start]), np.array([stop - start]))
    sentence = np.zeros(len(ids), dtype=bool)
    low, high = np.searchsorted(store.sentence_offsets, [start, stop])
    sentence[store.sentence_offsets[low:high] - start] = True
    starts |= sentence
    starts[:1] = True
    first = np.flatnonzero(starts)
    ends = np.append(first[1:], len(ids))
    keys = word_fingerprints(ids, first, ends - first)
    run = np.cumsum(sentence[first])
    for size, table in tables.items():
        begins = max(0, len(first) - size + 1)
        same = run[:begins] == run[size - 1 :]
        parts = [keys[step : step + begins][same] for step in range(size)]
        places = first[:begins][same] + start
        lengths = ends[size - 1 :][same] - first[:begins][same]
        facts = np.stack([places.astype(np.uint64), lengths.astype(np.uint64), *parts], axis=1)
        table.add(phrase_fingerprints(parts), facts)


def _text(store: Store, place: int, length: int) -> str | None:
    """Return the text of the `length` tokens of a store that begin at the index `place`.

    Return None if one of the tokens is special, or if one of the words has no letter or digit.
    """
    tokenizer = store.tokenizer
    ids = store.read(place, place + length).astype(np.int64)
    if tokenizer.specials[ids].any():
        return None
    parts = np.split(ids, np.flatnonzero(tokenizer.word_starts(ids))[1:])
    if not all(any(character.isalnum() for character in tokenizer.decode(part)) for part in parts):
        return None
    return tokenizer.decode(ids).strip() or None
