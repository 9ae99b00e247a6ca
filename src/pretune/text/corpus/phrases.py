"""Phrases: several words that belong together, such as names. A list of them, found again in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import hashed
from pretune.text.corpus.files import read_lines
from pretune.text.store.store import spans_to_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Phrases:
    """Phrases as fingerprints of their tokens, by the number of their words."""

    known: dict[int, Array]  # words → (phrases,) sorted

    @classmethod
    def make(cls, texts: Iterable[str], tokenizer: Tokenizer) -> Phrases:
        """Of the texts of phrases; those of one word are none."""
        # As a text begins with them, and as they stand inside one: some tokenizers keep the space before.
        ids, lengths = tokenizer.encode_many([form for text in texts for form in (text, f" {text}")])
        ends = np.cumsum(lengths)
        starts = tokenizer.word_starts(ids)
        starts[(ends - lengths)[lengths > 0]] = True
        first = np.flatnonzero(starts)
        keys = fingerprints(ids, first, np.diff(np.append(first, len(ids))))
        words = np.diff(np.searchsorted(first, np.append(0, ends)))  # of each text
        begin = np.cumsum(words) - words
        known = {}
        for count in np.unique(words[words > 1]).tolist():
            mine = begin[words == count]
            known[count] = np.unique(chain([keys[mine + step] for step in range(count)]))
        return cls(known)

    def find(self, ids: Array, first: Array, sizes: Array, fresh: Array) -> Array:
        """(k,) how many words the phrase has that begins with a word; 1: none does. No two overlap.

        Words begin at `first` and have `sizes` tokens; `fresh` is True where one does not follow the word before. Of phrases
        that begin in one place the longest counts, of those that overlap the first.
        """
        found = np.ones(len(first), dtype=np.int64)
        keys = key = fingerprints(ids, first, sizes)
        run = np.cumsum(fresh)
        for count in range(2, min(max(self.known, default=1), len(first)) + 1):
            begins = len(first) - count + 1
            key = chain([key[:begins], keys[count - 1 :]])
            if count in self.known:
                table = self.known[count]
                there = table[np.minimum(np.searchsorted(table, key), len(table) - 1)] == key
                found[:begins][there & (run[count - 1 :] == run[:begins])] = count
        free = 0  # the first word that is in no phrase yet
        for place in np.flatnonzero(found > 1).tolist():
            if place < free:
                found[place] = 1
            else:
                free = place + int(found[place])
        return found


def fingerprints(ids: Array, first: Array, sizes: Array) -> Array:
    """(k,) 64 bits for each word, of its tokens in their order."""
    if not len(first):
        return np.zeros(0, dtype=np.uint64)
    places = spans_to_indices(first, sizes)
    marks = hashed(0, "word", ids[places], places - np.repeat(first, sizes))
    return np.asarray(np.add.reduceat(marks, np.cumsum(sizes) - sizes))


def chain(keys: list[Array]) -> Array:
    """(k,) fingerprints of words in a row, from those of the words."""
    key = keys[0]
    for following in keys[1:]:
        key = hashed(0, "phrase", key) ^ following
    return key


def check_phrases(path: str | Path) -> None:
    """Refuse a file that is not there or has nothing in it."""
    path = Path(path)
    if not path.is_file():
        raise PretuneError(
            f"{path}: no such file of phrases; write one, a phrase a line, or find some: pretune phrases"
        )
    if not any(line.strip() for _, line in read_lines(path)):
        raise PretuneError(f"{path}: no phrases in it; write one a line, or find some: pretune phrases")


@lru_cache(maxsize=4)
def load_phrases(path: str, tokenizer: Tokenizer) -> Phrases:
    """The phrases of a file, one a line, for a tokenizer."""
    check_phrases(path)
    texts = [line.strip() for _, line in read_lines(Path(path)) if line.strip()]
    phrases = Phrases.make(texts, tokenizer)
    if not phrases.known:
        raise PretuneError(f"{path}: no phrase of two words or more among its {len(texts)} lines")
    return phrases
