"""Counting the words of a corpus of any size in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LONGEST_WORD = 32  # characters; what is longer (text without spaces, links, data) is cut into windows
WINDOW = 16


@dataclass
class WordCounts:
    """How often each whitespace-separated word occurs.

    At most `limit` distinct words are kept. When there are more, the rarer half is dropped (of equally rare ones the
    older), and the report says how much went: frequent words are never lost, and a text of nothing but rare words
    leaves its most recent part as a sample.

    >>> counts = WordCounts(limit=1000)
    >>> counts.add("hug pug hug")
    >>> counts.table["hug"]
    2
    """

    limit: int
    longest: int | None = LONGEST_WORD
    table: Counter[str] = field(default_factory=Counter)
    seen: int = 0  # occurrences counted
    dropped_words: int = 0  # distinct words pruned away (one that comes back and goes again counts twice)
    dropped_occurrences: int = 0

    def add(self, text: str) -> None:
        """Count the words of a text."""
        words = text.split()
        if words and self.longest is not None and max(map(len, words)) > self.longest:
            words = list(_cut(words))
        for start in range(0, len(words), self.limit):  # so that not even one huge text outgrows the table
            part = words[start : start + self.limit]
            self.seen += len(part)
            self.table.update(part)
            if len(self.table) > self.limit:
                self._prune(self.limit // 2)

    def _prune(self, keep: int) -> None:
        # Sorting is stable and a dictionary keeps its order of arrival: among equals, the newer come last and stay.
        ranked = sorted(self.table.items(), key=lambda item: item[1])
        gone = len(ranked) - keep
        self.dropped_words += gone
        self.dropped_occurrences += sum(count for _, count in ranked[:gone])
        self.table = Counter(dict(ranked[gone:]))


def _cut(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if len(word) <= LONGEST_WORD:
            yield word
        else:
            for start in range(0, len(word), WINDOW):
                yield word[start : start + WINDOW]


def scale(table: dict[str, int], total: int) -> Iterator[tuple[str, int]]:
    """Counts scaled down to add up to `total`, by systematic sampling; unchanged where they are fewer.

    Any group of words keeps its share to within one occurrence, which is what merge frequencies are made of.
    """
    whole = sum(table.values())
    if whole <= total:
        yield from table.items()
        return
    before = running = 0
    for word, count in table.items():
        running += count
        now = running * total // whole
        if now > before:
            yield word, now - before
        before = now
