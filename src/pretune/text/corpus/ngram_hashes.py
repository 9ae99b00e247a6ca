"""Hash word n-grams, and look them up in a set of n-grams, for contamination and near duplicates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.atomic_io import atomic_file

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
NGRAM_SIZE = 13  # words (Brown et al., 2020, arXiv:2005.14165, appendix C)
FEWEST_WORDS = 5  # that a text must have; a text shorter than an n-gram is searched as a whole
CACHED_WORDS = 1 << 20  # whose hashes are kept; a larger vocabulary starts an empty cache
# In scripts without spaces, each character is a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
BASE = np.uint64(0x9E3779B97F4A7C15)


def find_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation.

    >>> find_words("The cat's 2 MATS. 猫だ")
    ['the', 'cat', 's', '2', 'mats', '猫', 'だ']
    """
    return WORD.findall(text.casefold())


def hash_text(text: str) -> int:
    """Return a 64-bit hash of a text, which is the same in every process and always odd.

    Because hashes are odd, the number 0 can separate documents.
    """
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") | 1


class NgramHasher:
    """A hasher that maps words, and n-grams of words, to 64-bit integers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def words(self, words: Iterable[str]) -> Hashes:
        """Return a 64-bit hash of each word, (words,)."""
        return np.fromiter((self.known.get(word) or self._new(word) for word in words), dtype=np.uint64)

    def _new(self, word: str) -> int:
        if len(self.known) >= CACHED_WORDS:
            self.known.clear()
        number = self.known[word] = hash_text(word)
        return number

    @staticmethod
    def runs(numbers: Hashes, size: int) -> Hashes:
        """Return the hash of each n-gram of `size` words, (n - size + 1,), given the hashes of n words (`numbers`)."""
        count = len(numbers) - size + 1
        if count < 1:
            return np.empty(0, dtype=np.uint64)
        found = np.zeros(count, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for place in range(size):
                found = found * BASE + numbers[place : place + count]
        return found

    def text_ngrams(self, text: str, size: int = NGRAM_SIZE) -> tuple[int, Hashes]:
        """Return the number of words in each n-gram of a text, and the hashes of the n-grams.

        The number is `size`, except that a shorter text is a single n-gram. A text of fewer than FEWEST_WORDS words has
        no n-grams, because a text as short as that occurs in any corpus by coincidence.
        """
        words = find_words(text)
        length = min(size, len(words))
        return length, self.runs(self.words(words if length >= FEWEST_WORDS else []), max(1, length))


@dataclass(frozen=True)
class NgramSet:
    """A set of hashed word n-grams of one or more lengths; `hashes` maps each length to its sorted hashes."""

    hashes: Mapping[int, Hashes]

    @classmethod
    def collect(cls, ngrams: Iterable[tuple[int, Hashes]]) -> NgramSet:
        """Return the set of the n-grams in `ngrams`, which are pairs of an n-gram length and an array of hashes."""
        found: dict[int, list[Hashes]] = {}
        for length, numbers in ngrams:
            if len(numbers):
                found.setdefault(length, []).append(numbers)
        return cls({length: np.unique(np.concatenate(found[length])) for length in sorted(found)})

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int = NGRAM_SIZE) -> NgramSet:
        """Return the set of all n-grams of `size` words in the given texts."""
        hasher = NgramHasher()
        return cls.collect(hasher.text_ngrams(text, size) for text in texts)

    def __len__(self) -> int:
        return sum(map(len, self.hashes.values()))

    def find(self, numbers: Hashes) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
        """Find the n-grams of the set in a text, given the hashes of the words of the text (`numbers`).

        Return a dictionary from n-gram length to the indices of the words at which such an n-gram begins.
        """
        places = {}
        for length, sought in self.hashes.items():
            runs = NgramHasher.runs(numbers, length)
            at = np.searchsorted(sought, runs).clip(max=len(sought) - 1)
            places[length] = np.flatnonzero(sought[at] == runs)
        return places

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the set of n-grams, in hexadecimal."""
        digest = hashlib.sha256()
        for length, numbers in self.hashes.items():
            digest.update(length.to_bytes(8, "little") + numbers.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the set of n-grams to an .npz file."""
        with atomic_file(path) as file:
            np.savez(file, **{str(length): numbers for length, numbers in self.hashes.items()})  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> NgramSet:
        """Read a set of n-grams from a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls({int(length): arrays[length] for length in arrays.files})
