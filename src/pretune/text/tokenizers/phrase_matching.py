"""Match a list of multiword phrases, such as names, in sequences of token ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import random_bits
from pretune.text.corpus.files import read_lines
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class PhraseMatcher:
    """A set of phrases to find in token ids, stored as fingerprints, which are hashes of the tokens of a phrase.

    `known` maps each number of words to the sorted fingerprints of the phrases with that many words.
    """

    known: dict[int, Array]  # number of words → (phrases,) sorted fingerprints

    @classmethod
    def make(cls, texts: Iterable[str], tokenizer: Tokenizer) -> PhraseMatcher:
        """Build a matcher that finds the given phrases; texts of a single word are ignored."""
        # At the beginning of a text and after a space: some tokenizers keep the space in the token.
        ids, lengths = tokenizer.encode_many([form for text in texts for form in (text, f" {text}")])
        ends = np.cumsum(lengths)
        starts = tokenizer.word_starts(ids)
        starts[(ends - lengths)[lengths > 0]] = True
        first = np.flatnonzero(starts)
        keys = word_fingerprints(ids, first, np.diff(np.append(first, len(ids))))
        words = np.diff(np.searchsorted(first, np.append(0, ends)))  # number per text
        begin = np.cumsum(words) - words
        known = {}
        for count in np.unique(words[words > 1]).tolist():
            mine = begin[words == count]
            known[count] = np.unique(phrase_fingerprints([keys[mine + step] for step in range(count)]))
        return cls(known)

    def find(self, ids: Array, first: Array, sizes: Array, gaps: Array) -> Array:
        """Return, for each word of a token sequence, the number of words of the phrase that begins there, (words,).

        The number is 1 for a word at which no phrase begins. `first` and `sizes` (words,) have the index of the first
        token and the number of tokens of each word; `gaps` (words,) is True for a word that does not directly follow
        the previous word, so that no phrase contains both. Of overlapping phrases the first is chosen, and of those
        that begin at the same word the longest.
        """
        counts = np.ones(len(first), dtype=np.int64)
        keys = key = word_fingerprints(ids, first, sizes)
        run = np.cumsum(gaps)
        for count in range(2, min(max(self.known, default=1), len(first)) + 1):
            begins = len(first) - count + 1
            key = phrase_fingerprints([key[:begins], keys[count - 1 :]])
            if count in self.known:
                table = self.known[count]
                known = table[np.minimum(np.searchsorted(table, key), len(table) - 1)] == key
                counts[:begins][known & (run[count - 1 :] == run[:begins])] = count
        free = 0  # first word after the last chosen phrase
        for word in np.flatnonzero(counts > 1).tolist():
            if word < free:
                counts[word] = 1
            else:
                free = word + int(counts[word])
        return counts


def word_fingerprints(ids: Array, first: Array, sizes: Array) -> Array:
    """Return a 64-bit fingerprint of the token ids of each word, (words,).

    `first` and `sizes` (words,) have the index of the first token and the number of tokens of each word.
    """
    if not len(first):
        return np.zeros(0, dtype=np.uint64)
    places = span_indices(first, sizes)
    marks = random_bits(0, "word", ids[places], places - np.repeat(first, sizes))
    return np.asarray(np.add.reduceat(marks, np.cumsum(sizes) - sizes))


def phrase_fingerprints(keys: list[Array]) -> Array:
    """Return the fingerprint of each of k phrases with the same number of words, (k,).

    `keys` has one array (k,) per word: the fingerprints of the first words of all phrases, of the second words, and so
    on.
    """
    key = keys[0]
    for following in keys[1:]:
        key = random_bits(0, "phrase", key) ^ following
    return key


def check_phrase_file(path: str | Path) -> None:
    """Raise an error if a file of phrases is missing or empty."""
    path = Path(path)
    if not path.is_file() or not any(line.strip() for _, line in read_lines(path)):
        problem = "the phrase file is empty" if path.is_file() else "no such phrase file"
        raise PretuneError(f"{path}: {problem}; write one phrase per line, or extract phrases with `pretune phrases`")


@lru_cache(maxsize=4)
def load_phrases(path: str, tokenizer: Tokenizer) -> PhraseMatcher:
    """Load a file with one phrase per line, and return a matcher that finds these phrases in token ids."""
    check_phrase_file(path)
    texts = [line.strip() for _, line in read_lines(Path(path)) if line.strip()]
    phrases = PhraseMatcher.make(texts, tokenizer)
    if not phrases.known:
        raise PretuneError(f"{path}: none of the {len(texts)} lines is a phrase of two or more words; add such phrases")
    return phrases
