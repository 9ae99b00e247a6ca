"""Tests of word n-gram hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.text.corpus import ngram_hashes
from pretune.text.corpus.ngram_hashes import NgramHasher, NgramSet, find_words


def test_different_ngrams_have_different_hashes() -> None:
    hashes = NgramHasher()
    words = find_words("a b a b c a b")
    numbers = hashes.words(words)
    for size in (1, 2, 3):
        runs = hashes.runs(numbers, size).tolist()
        plain = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
        assert [a == b for a in runs for b in runs] == [a == b for a in plain for b in plain]
    assert len(hashes.runs(numbers, 9)) == 0


def test_saved_set_of_ngrams_finds_the_same(tmp_path: Path) -> None:
    ngrams = NgramSet.of_texts(["One two three four five six", "Too short to count", "", "a b c d e"], size=6)
    ngrams.save(tmp_path / "ngrams.npz")
    again = NgramSet.load(tmp_path / "ngrams.npz")
    assert again.digest == ngrams.digest != NgramSet.of_texts(["One two three four five seven"]).digest
    numbers = NgramHasher().words(find_words("Say: one, TWO three four five six. And a b c d e!"))
    assert {length: places.tolist() for length, places in again.find(numbers).items()} == {5: [8], 6: [1]}
    assert len(NgramSet.of_texts(["four words are few"])) == 0


def test_hashes_do_not_depend_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"word{i}" for i in range(20)] * 2
    expected = NgramHasher().words(words).tolist()
    monkeypatch.setattr(ngram_hashes, "CACHED_WORDS", 3)
    small = NgramHasher()
    assert small.words(words).tolist() == expected
    assert len(small.known) <= 3
