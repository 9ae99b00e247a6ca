"""Contamination: n-grams of words that a store shares with a suite (Brown et al., 2020, arXiv:2005.14165, appendix C).

The n-grams of the suite are held in memory as hashes; the store is read once, document by document.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pretune.evaluation.suites.declaration import SuiteRows
from pretune.runtime.progress import progress
from pretune.text.store.store import Store

Array = np.ndarray[Any, np.dtype[np.uint64]]
WORDS = 13  # in an n-gram
FEWEST = 5  # words that a text must have; a text shorter than an n-gram is searched as a whole
ROLES = ("text", "pair", "question", "query", "choices")
AT_ONCE = 1 << 18  # words of the store
SHOWN = 3  # places
# In scripts without spaces, each character is a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
BASE = np.uint64(0x9E3779B97F4A7C15)


def find_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation.

    >>> find_words("The cat's 2 MATS. 猫だ")
    ['the', 'cat', 's', '2', 'mats', '猫', 'だ']
    """
    return WORD.findall(text.casefold())


class NgramHasher:
    """A hasher of words and of word n-grams, which maps each of them to a 64-bit integer."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def words(self, words: Iterable[str]) -> Array:
        """Return a 64-bit hash of each word, (n,)."""
        return np.fromiter((self.known.get(word) or self._new(word) for word in words), dtype=np.uint64)

    def _new(self, word: str) -> int:
        number = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little") | 1
        self.known[word] = number
        return number

    @staticmethod
    def runs(numbers: Array, size: int) -> Array:
        """Return the hash of each n-gram of `size` words, (n - size + 1,), given the hashes of n words (`numbers`)."""
        count = len(numbers) - size + 1
        if count < 1:
            return np.empty(0, dtype=np.uint64)
        found = np.zeros(count, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for place in range(size):
                found = found * BASE + numbers[place : place + count]
        return found


@dataclass
class RoleNgrams:
    """The word n-grams of one field (role), such as `text` or `question`, in a split of a benchmark suite."""

    rows: SuiteRows
    role: str
    row: list[int] = field(default_factory=list)  # the row of each n-gram
    runs: list[tuple[int, int]] = field(default_factory=list)  # the size and hash of each n-gram
    checked: set[int] = field(default_factory=set)
    short: int = 0  # texts with too few words

    def found(self, hits: dict[int, set[int]]) -> dict[str, Any]:
        """Return a report row on how many texts have an n-gram in `hits` (n-gram size → hashes found in a corpus)."""
        counts: dict[int, list[bool]] = {}
        for row, (size, number) in zip(self.row, self.runs, strict=True):
            counts.setdefault(row, []).append(number in hits.get(size, set()))
        touched = sorted(row for row, found in counts.items() if any(found))
        covered = sum(sum(found) / len(found) for found in counts.values())
        return {
            "task": self.rows.task.title,
            "split": self.rows.split,
            "role": self.role,
            "examples": len(self.rows),
            "too_short": self.short,
            "found": len(touched),
            "contaminated": len(touched) / max(1, len(self.checked)),
            "mean_coverage": covered / max(1, len(self.checked)),
            "first": [self.rows.places[row] for row in touched[:SHOWN]],
        }


def ngram_overlap(store: Store, splits: Sequence[SuiteRows], size: int = WORDS) -> list[dict[str, Any]]:
    """Return, for each split and text field, how many examples share an n-gram of `size` words with a token store."""
    hashes = NgramHasher()
    asked = [made for rows in splits for role in ROLES if (made := _ask(rows, role, size, hashes)) is not None]
    wanted: dict[int, list[int]] = {}
    for part in asked:
        for length, number in part.runs:
            wanted.setdefault(length, []).append(number)
    known = {length: np.unique(np.array(numbers, dtype=np.uint64)) for length, numbers in wanted.items()}
    hits: dict[int, set[int]] = {length: set() for length in known}
    with progress("searching", total=store.documents) as bar:
        for done, numbers in _chunks(store, hashes):
            for length, sought in known.items():
                runs = hashes.runs(numbers, length)
                at = np.searchsorted(sought, runs).clip(max=len(sought) - 1)
                hits[length].update(runs[sought[at] == runs].tolist())
            bar.update(done, f"{sum(map(len, hits.values())):,} n-grams found")
    return [part.found(hits) for part in asked]


def _ask(rows: SuiteRows, role: str, size: int, hashes: NgramHasher) -> RoleNgrams | None:
    """Return the hashed n-grams of `size` words in the field `role` of benchmark rows; None if no row has the field."""
    made = RoleNgrams(rows, role)
    there = False
    for number, row in enumerate(rows.rows):
        value = row.get(role)
        if value is None:
            continue
        there = True
        # Words of tagged sentences, and choices, are lists.
        words = find_words(" ".join(map(str, value)) if isinstance(value, list) else str(value))
        length = min(size, len(words))
        if length < FEWEST:
            made.short += 1
            continue
        made.checked.add(number)
        for run in hashes.runs(hashes.words(words), length).tolist():
            made.row.append(number)
            made.runs.append((length, run))
    return made if there else None


def _chunks(store: Store, hashes: NgramHasher) -> Iterator[tuple[int, Array]]:
    """Yield (number of documents read so far, word hashes of the next documents of a token store, separated by 0)."""
    parts: list[Array] = []
    apart = np.zeros(1, dtype=np.uint64)
    for index in range(store.documents):
        parts += [hashes.words(find_words(store.tokenizer.decode(store.document(index)))), apart]
        if sum(map(len, parts)) >= AT_ONCE:
            yield index + 1, np.concatenate(parts)
            parts = []
    if parts:
        yield store.documents, np.concatenate(parts)


def read_splits(suite: Any, data: Path, allow_incomplete: bool) -> list[SuiteRows]:
    """Read all dev and test splits of a benchmark suite that have files in the folder `data`."""
    found = []
    for task in suite.tasks.values():
        for split in ("dev", "test"):
            if task.find_files(split, data):
                found.append(task.read(split, data, allow_incomplete=allow_incomplete))
    return found
