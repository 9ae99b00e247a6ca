from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune import PretuneError
from pretune.text.corpus.documents import Document
from pretune.text.store import phrase_mining
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.phrase_mining import NgramCounts, find_collocations
from pretune.text.store.store import Store
from pretune.text.tokenizers.phrase_matching import PhraseMatcher, load_phrases
from pretune.text.tokenizers.training import Kind, train_on_documents

KINDS: list[Kind] = [
    "wordpiece",
    "bpe",
    "byte-level-bpe",
    "unigram",
    "sentencepiece-bpe",
    "sentencepiece-unigram",
    "items",
]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "new", "york", "city", "bank"]


def find_phrases_naively(words: list[str], phrases: set[tuple[str, ...]]) -> list[int]:
    """Return the number of words of the phrase that begins at each word, leftmost and longest first."""
    found, place = [1] * len(words), 0
    while place < len(words):
        sizes = [n for n in range(2, len(words) - place + 1) if tuple(words[place : place + n]) in phrases]
        found[place] = max(sizes, default=1)
        place += found[place]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_phrases_equal_those_of_a_naive_search(kind: Kind) -> None:
    tokenizer = train_on_documents([Document(" ".join(WORDS * 30), Path("a"), 1)], kind, 300)
    known = {
        ("new", "york"),
        ("new", "york", "city"),
        ("york", "city", "bank"),
        ("one", "one"),
        ("ten", "two", "one", "six"),
    }
    phrases = PhraseMatcher.make([*map(" ".join, sorted(known)), "alone", ""], tokenizer)

    @given(st.lists(st.sampled_from([*WORDS, "new", "york", "city"]), max_size=25))
    def check(words: list[str]) -> None:
        ids = np.array(tokenizer.encode(" ".join(words)), dtype=np.int64)
        first = np.flatnonzero(tokenizer.word_starts(ids)) if len(ids) else np.zeros(0, dtype=np.int64)
        sizes = np.diff(np.append(first, len(ids)))
        fresh = np.zeros(len(first), dtype=bool)
        assert phrases.find(ids, first, sizes, fresh).tolist() == find_phrases_naively(words, known)
        fresh[:] = True  # no token follows another
        assert (phrases.find(ids, first, sizes, fresh) == 1).all()

    check()


def make_store(folder: Path, kind: Kind = "wordpiece") -> Store:
    """Return a store of words in random order, except for two and three that occur together."""
    chance = random.Random(0)
    texts = []
    for _ in range(300):
        words = chance.choices([*WORDS, "new york", "big red bus"], k=chance.randint(3, 12))
        texts.append(" ".join(words) + ".")
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train_on_documents([Document(t, folder, 1) for t in texts], kind, 300)
    return build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_collocations_are_found(kind: Kind, tmp_path: Path) -> None:
    rows = find_collocations(make_store(tmp_path, kind), min_count=5, min_pmi=2.5)
    assert {row["phrase"].rstrip(".") for row in rows[:3]} == {"big red", "red bus", "big red bus"}
    assert all(row["count"] >= 5 and row["pmi"] >= 2.5 for row in rows)


def test_chunks_and_limits_change_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    whole = find_collocations(store, min_count=5, min_pmi=2.5)
    monkeypatch.setattr(phrase_mining, "CHUNK", 37)
    assert find_collocations(store, min_count=5, min_pmi=2.5) == whole
    few = find_collocations(store, min_count=2, min_pmi=2.5, limit=60)
    assert {"big red", "red bus", "big red bus"} <= {row["phrase"] for row in few}
    part = find_collocations(store, min_count=2, min_pmi=2.5, max_tokens=store.tokens / 2)
    assert max(row["count"] for row in part) < max(row["count"] for row in whole)


def test_counts_are_bounded_and_keep_frequent_words() -> None:
    counts = NgramCounts(limit=10)
    for start in range(0, 100, 5):
        keys = np.concatenate([np.full(3, 7), np.arange(start + 10, start + 15)]).astype(np.uint64)
        counts.add(keys, keys[:, None])
    assert len(counts.keys) <= 10
    assert counts.counts_of(np.array([7, 9999], dtype=np.uint64)).tolist() == [60, 0]


def test_phrases_verb_writes_a_file_that_mlm_reads(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    facts = pt.phrases(store.folder, out=tmp_path / "phrases.txt", min_count=5, min_pmi=2.5).facts
    assert facts["phrases"] == len((tmp_path / "phrases.txt").read_text().splitlines()) >= 3
    assert 3 in load_phrases(str(tmp_path / "phrases.txt"), store.tokenizer).known
    with pytest.raises(PretuneError, match="no phrase occurs 10000 times; lower --min-count"):
        pt.phrases(store, out=tmp_path / "none.txt", min_count=10_000)
    assert not (tmp_path / "none.txt").exists()
