"""Compute the features of a document that cleaning rules use, each at most once and only if a rule needs it."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import accumulate

import numpy as np

from pretune.runtime.arrays import Array
from pretune.text.corpus.ngram_hashes import Hashes, NgramHasher, find_words
from pretune.text.corpus.sentences import split_sentences

# Scripts without spaces between words, and Hangul, whose words are short: Thai, Lao, Burmese, Khmer, kana, Han, Hangul.
DENSE = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
DENSE_SHARE = 0.3  # of the characters of a text
PARAGRAPH_BREAK = re.compile(r"\n\s*\n")


class DocumentFeatures:
    """A document with its words, lines and paragraphs, each computed on first access.

    >>> DocumentFeatures("One. Two!", "en", NgramHasher()).words
    ['one', 'two']
    """

    def __init__(self, text: str, language: str, hasher: NgramHasher) -> None:
        self.text, self.language, self._hasher = text, language, hasher

    @cached_property
    def words(self) -> list[str]:
        """Return the words of the document in lower case, without punctuation; Han characters and kana are words."""
        return find_words(self.text)

    @cached_property
    def word_hashes(self) -> Hashes:
        """Return a 64-bit hash of each word, (words,)."""
        return self._hasher.words(self.words)

    @cached_property
    def word_lengths(self) -> Array:
        """Return the number of characters of each word, (words,)."""
        return np.fromiter(map(len, self.words), dtype=np.int64)

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines of the document that are not blank, without whitespace around them."""
        return [line for part in self.text.split("\n") if (line := part.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        """Return the paragraphs of the document, which are separated by blank lines."""
        return [part for piece in PARAGRAPH_BREAK.split(self.text) if (part := piece.strip())]

    def has_sentences(self, least: int) -> bool:
        """Return whether the document has at least `least` sentences; stop counting as soon as it does."""
        counts = (len(split_sentences(paragraph, self.language)) for paragraph in self.paragraphs)
        return any(total >= least for total in accumulate(counts))

    @cached_property
    def dense(self) -> bool:
        """Return whether the text is in a script with short words or without spaces between words, such as Chinese."""
        return not self.text.isascii() and len(DENSE.findall(self.text)) > DENSE_SHARE * len(self.text)
