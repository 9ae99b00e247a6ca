"""Count the words of a corpus of any size in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

LONGEST_WORD = 32  # characters; longer words (text without spaces, URLs, data) are split into windows
WINDOW = 16


@dataclass
class WordCounts:
    """Counts of whitespace-separated words, in bounded memory.

    When `table` exceeds `limit` distinct words, the rarer half is dropped; of equally rare words, those that were added
    first are dropped first. Words of more than `longest` characters are cut into pieces. `seen` counts all occurrences.

    >>> counts = WordCounts(limit=1000)
    >>> counts.add("hug pug hug")
    >>> counts.table["hug"]
    2
    """

    limit: int
    longest: int | None = LONGEST_WORD
    table: Counter[str] = field(default_factory=Counter)
    seen: int = 0  # occurrences counted
    dropped_words: int = 0  # distinct words dropped (a word that reappears and is dropped again counts twice)
    dropped_occurrences: int = 0

    def add(self, text: str) -> None:
        """Count the words of a text."""
        words = text.split()
        if words and self.longest is not None and max(map(len, words)) > self.longest:
            words = list(_cut(words))
        for start in range(0, len(words), self.limit):  # so that a single huge text cannot outgrow the table
            part = words[start : start + self.limit]
            self.seen += len(part)
            self.table.update(part)
            if len(self.table) > self.limit:
                self._prune(self.limit // 2)

    def _prune(self, keep: int) -> None:
        # Sorting is stable and dictionaries keep insertion order: among equal counts, newer words come last and are kept.
        ranked = sorted(self.table.items(), key=lambda item: item[1])
        dropped = len(ranked) - keep
        self.dropped_words += dropped
        self.dropped_occurrences += sum(count for _, count in ranked[:dropped])
        self.table = Counter(dict(ranked[dropped:]))


def smoothed_shares(sizes: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Return the probability of sampling each language: proportional to its share of the text to the power `alpha`.

    `sizes` has the amount of text in each language (Lample and Conneau, 2019).

    >>> {name: round(share, 2) for name, share in smoothed_shares({"en": 90, "sw": 10}, 0.5).items()}
    {'en': 0.75, 'sw': 0.25}
    """
    total = sum(sizes.values())
    powers = {name: (size / total) ** alpha if size else 0.0 for name, size in sizes.items()}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def smooth_languages(counts: Mapping[str, WordCounts], alpha: float) -> WordCounts:
    """Join the word counts of several languages, scaled to the shares of `smoothed_shares` with the exponent `alpha`.

    All counts of a language are multiplied by the same factor. The factors are at least 1, so that no word is lost.

    >>> english, swahili = WordCounts(limit=100), WordCounts(limit=100)
    >>> english.add("the " * 16)
    >>> swahili.add("na " * 4)
    >>> smooth_languages({"en": english, "sw": swahili}, 0.5).table
    Counter({'the': 16, 'na': 8})
    """
    sizes = {name: words.seen for name, words in counts.items() if words.seen}
    shares = smoothed_shares(sizes, alpha)
    factors = {name: shares[name] / size for name, size in sizes.items()}
    table: Counter[str] = Counter()
    for name, factor in factors.items():
        scale = factor / min(factors.values())
        table.update({word: round(scale * count) for word, count in counts[name].table.items()})
    merged = WordCounts(sum(words.limit for words in counts.values()), table=table)
    merged.seen = sum(words.seen for words in counts.values())
    merged.dropped_words = sum(words.dropped_words for words in counts.values())
    merged.dropped_occurrences = sum(words.dropped_occurrences for words in counts.values())
    return merged


def _cut(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        size = WINDOW if len(word) > LONGEST_WORD else LONGEST_WORD
        yield from (word[start : start + size] for start in range(0, len(word), size))


def scale_counts(table: dict[str, int], total: int) -> Iterator[tuple[str, int]]:
    """Yield (word, count) for each word of a table; the counts are scaled down if their sum exceeds `total`.

    All counts are scaled by the same factor, so that their sum is at most `total`.
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
