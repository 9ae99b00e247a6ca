"""Contamination: n-grams of words that a store shares with a suite (Brown et al., 2020, arXiv:2005.14165, appendix C).

The n-grams of the suite are held in memory as hashes; the store is read once, document by document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pretune.evaluation.suites.declaration import SuiteRows
from pretune.runtime.progress import progress
from pretune.text.corpus.ngram_hashes import NGRAM_SIZE, Hashes, NgramHasher, NgramSet, find_words
from pretune.text.store.store import Store

ROLES = ("text", "pair", "question", "query", "choices")
AT_ONCE = 1 << 18  # words of the store
SHOWN = 3  # places


@dataclass
class RoleNgrams:
    """The word n-grams of one field (role), such as `text` or `question`, in a split of a benchmark suite.

    `ngrams` maps the number of a row to the size and the hashes of its n-grams; `short` counts texts with too few
    words.
    """

    rows: SuiteRows
    role: str
    ngrams: dict[int, tuple[int, Hashes]] = field(default_factory=dict)  # row → size and hashes of its n-grams
    short: int = 0  # texts with too few words

    def found(self, hits: dict[int, set[int]]) -> dict[str, Any]:
        """Return a report row: how many texts of this field have an n-gram that also occurs in the corpus.

        `hits` maps each n-gram size to the hashes that were found in the corpus.
        """
        counts = {row: [number in hits[size] for number in runs.tolist()] for row, (size, runs) in self.ngrams.items()}
        touched = sorted(row for row, found in counts.items() if any(found))
        covered = sum(sum(found) / len(found) for found in counts.values())
        return {
            "task": self.rows.task.title,
            "split": self.rows.split,
            "role": self.role,
            "examples": len(self.rows),
            "too_short": self.short,
            "found": len(touched),
            "contaminated": len(touched) / max(1, len(self.ngrams)),
            "mean_coverage": covered / max(1, len(self.ngrams)),
            "first": [self.rows.places[row] for row in touched[:SHOWN]],
        }


def ngram_overlap(store: Store, splits: Sequence[SuiteRows], size: int = NGRAM_SIZE) -> list[dict[str, Any]]:
    """Return a report row for each split and text field: how many of its texts share an n-gram with a token store.

    `size` is the length of the n-grams in words.
    """
    hashes = NgramHasher()
    asked = [made for rows in splits for role in ROLES if (made := _ask(rows, role, size, hashes)) is not None]
    sought = NgramSet.collect(ngrams for part in asked for ngrams in part.ngrams.values())
    hits: dict[int, set[int]] = {length: set() for length in sought.hashes}
    with progress("searching", total=store.documents) as bar:
        for done, numbers in _chunks(store, hashes):
            for length, places in sought.find(numbers).items():
                hits[length].update(hashes.runs(numbers, length)[places].tolist())
            bar.update(done, f"{sum(map(len, hits.values())):,} n-grams found")
    return [part.found(hits) for part in asked]


def _ask(rows: SuiteRows, role: str, size: int, hashes: NgramHasher) -> RoleNgrams | None:
    """Return the hashed n-grams of `size` words in the field `role` of `rows`; None if no row has the field."""
    made = RoleNgrams(rows, role)
    there = False
    for number, row in enumerate(rows.rows):
        value = row.get(role)
        if value is None:
            continue
        there = True
        length, runs = hashes.text_ngrams(_as_text(value), size)
        if len(runs):
            made.ngrams[number] = length, runs
        else:
            made.short += 1
    return made if there else None


def _as_text(value: Any) -> str:
    """Return the value of a benchmark field as one text; the items of a list, such as words, sentences or choices, are joined."""
    return " ".join(map(_as_text, value)) if isinstance(value, list) else str(value)


def split_texts(splits: Sequence[SuiteRows]) -> Iterator[str]:
    """Yield the texts in the rows of benchmark splits, one for each text field of a row."""
    for rows in splits:
        for row in rows.rows:
            yield from (_as_text(row[role]) for role in ROLES if row.get(role) is not None)


def _chunks(store: Store, hashes: NgramHasher) -> Iterator[tuple[int, Hashes]]:
    """Yield (number of documents read so far, word hashes) for each chunk of a token store.

    The hashes of different documents are separated by 0; `hashes` computes them.
    """
    parts: list[Hashes] = []
    apart = np.zeros(1, dtype=np.uint64)
    for index in range(store.documents):
        parts += [hashes.words(find_words(store.tokenizer.decode(store.document(index)))), apart]
        if sum(map(len, parts)) >= AT_ONCE:
            yield index + 1, np.concatenate(parts)
            parts = []
    if parts:
        yield store.documents, np.concatenate(parts)


def read_splits(suite: Any, data: Path, allow_incomplete: bool) -> list[SuiteRows]:
    """Read all dev and test splits of a benchmark suite that have files in the folder `data`.

    With `allow_incomplete`, files may have fewer rows than the official ones.
    """
    found = []
    for task in suite.tasks.values():
        for split in ("dev", "test"):
            if task.find_files(split, data):
                found.append(task.read(split, data, allow_incomplete=allow_incomplete))
    return found
