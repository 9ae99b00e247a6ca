from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pretune.text.corpus.word_counts import LONGEST_WORD, WordCounts, scale_counts


@given(st.lists(st.text(alphabet="abc \n", max_size=80), max_size=20))
def test_without_pruning_counts_are_exact(texts: list[str]) -> None:
    counts = WordCounts(limit=1000)
    for text in texts:
        counts.add(text)
    words = [word for text in texts for word in text.split() if len(word) <= LONGEST_WORD]
    assert all(counts.table[word] >= n for word, n in Counter(words).items())
    assert counts.seen == counts.table.total()
    assert counts.dropped_words == 0


@given(st.lists(st.integers(0, 300), max_size=2000), st.integers(4, 60))
def test_table_stays_within_its_limit_and_all_occurrences_are_counted(words: list[int], limit: int) -> None:
    counts = WordCounts(limit=limit)
    for start in range(0, len(words), 7):
        counts.add(" ".join(f"w{i}" for i in words[start : start + 7]))
        assert len(counts.table) <= limit
    assert counts.seen == len(words) == counts.table.total() + counts.dropped_occurrences


def test_frequent_words_are_kept_among_many_rare_ones() -> None:
    counts = WordCounts(limit=100)
    for i in range(5000):
        counts.add(f"the rare{i} rarer{i}")
    assert counts.table["the"] == 5000


def test_text_without_spaces_is_split_into_windows() -> None:
    counts = WordCounts(limit=1000)
    counts.add("字" * 10_000)
    assert max(map(len, counts.table)) <= LONGEST_WORD


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 500), min_size=1), st.integers(1, 300))
def test_scaled_counts_keep_their_proportions_within_one(table: dict[str, int], total: int) -> None:
    scaled = dict(scale_counts(table, total))
    whole = sum(table.values())
    if whole <= total:
        assert scaled == table
        return
    assert sum(scaled.values()) == total
    for word, count in table.items():
        assert abs(scaled.get(word, 0) - count * total / whole) <= 1
