"""Tests of near duplicates: MinHash against exact Jaccard similarities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.runtime.arrays import Array
from pretune.text.corpus.cleaning import near_duplicates
from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.near_duplicates import (
    PERMUTATIONS,
    choose_bands,
    duplicate_clusters,
    minhash_signature,
)
from pretune.text.corpus.ngram_hashes import NgramHasher


def signatures(texts: list[str]) -> Array:
    hasher = NgramHasher()
    return np.array([minhash_signature(DocumentFeatures(text, "en", hasher)) for text in texts]).reshape(
        -1, PERMUTATIONS
    )


def shingles(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))}


def similarity(one: str, other: str) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def variants(number: int, changes: list[int]) -> list[str]:
    """Return a text of 300 words, and copies with some words replaced, at places spread over the text."""
    words = [f"w{number}x{i}" for i in range(300)]
    found = []
    for change in changes:
        copy = list(words)
        for i in range(change):
            copy[(i * 300) // max(1, change)] = f"other{number}x{change}x{i}"
        found.append(" ".join(copy))
    return found


def test_clusters_agree_with_exact_similarities() -> None:
    """Pairs well above the threshold are found, those well below are not, among 40 texts with copies of all degrees."""
    texts = [text for number in range(40) for text in variants(number, [0, 1, 4, 25, 60])]
    exact = [similarity(texts[0], text) for text in texts[:5]]
    assert exact[1] > 0.95 and exact[2] > 0.85 and exact[3] < 0.5 and exact[4] < 0.1
    clusters = duplicate_clusters(signatures(texts), 0.7)
    for start in range(0, len(texts), 5):
        assert clusters[start : start + 5].tolist() == [start, start, start, start + 3, start + 4]


def test_signatures_estimate_similarities() -> None:
    errors = []
    for number in range(30):
        one, other = variants(number, [0, 10])
        a, b = signatures([one, other])
        errors.append(float((a == b).mean()) - similarity(one, other))
    assert abs(np.mean(errors)) < 0.03 and max(map(abs, errors)) < 0.25  # standard errors of 0.008 and 0.04


@settings(max_examples=60)
@given(st.permutations(range(12)), st.integers(0, 5))
def test_clusters_do_not_depend_on_the_order(order: list[int], number: int) -> None:
    texts = [*variants(number, [0, 2, 10, 20, 80]), *variants(number + 50, [0, 12, 24]), "", "!", "a", "a"]
    here = duplicate_clusters(signatures(texts), 0.6)
    there = duplicate_clusters(signatures([texts[i] for i in order]), 0.6)
    together = {(i, j) for i in range(12) for j in range(12) if here[i] == here[j]}
    assert together == {(order[i], order[j]) for i in range(12) for j in range(12) if there[i] == there[j]}
    assert (there <= np.arange(12)).all() and (
        there[there] == there
    ).all()  # each cluster is named by its first document
    kept = [texts[i] for i in range(12) if here[i] == i]
    assert (duplicate_clusters(signatures(kept), 0.6) == np.arange(len(kept))).all()  # a second time finds nothing


def test_exact_duplicates_and_documents_without_words() -> None:
    texts = [
        "Hello there.",
        "hello THERE",
        "?",
        "!",
        "?",
        "",
        "  ",
        "one two three four five",
        "one two three four six",
    ]
    assert duplicate_clusters(signatures(texts), 1.0).tolist() == [0, 0, 2, 3, 2, 5, 5, 7, 8]
    assert len(duplicate_clusters(signatures([]), 0.8)) == 0


def test_large_buckets_are_compared_with_few_of_their_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{variants(0, [0])[0]} number {i}" for i in range(40)] + variants(1, [0])
    expected = duplicate_clusters(signatures(texts), 0.8).tolist()
    assert expected == [0] * 40 + [40]
    monkeypatch.setattr(near_duplicates, "LARGEST_BUCKET", 5)
    assert duplicate_clusters(signatures(texts), 0.8).tolist() == expected


def test_long_documents_are_hashed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = signatures(variants(0, [0]))
    monkeypatch.setattr(near_duplicates, "SHINGLES_AT_ONCE", 7)
    assert (signatures(variants(0, [0])) == whole).all()


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    bands, rows = choose_bands(threshold)
    assert 1 <= bands * rows <= PERMUTATIONS
    assert 1 - (1 - threshold**rows) ** bands >= 0.99
