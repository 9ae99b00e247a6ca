"""Tests of anisotropy and self-similarity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.probing.anisotropy import mean_cosine, self_similarity


@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 10_000))
def test_mean_cosine_is_that_of_all_pairs(count: int, width: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [units[i] @ units[j] for i in range(count) for j in range(count) if i != j]
    assert mean_cosine(vectors) == pytest.approx(np.mean(pairs), abs=1e-9)
    assert mean_cosine(5 * vectors) == pytest.approx(mean_cosine(vectors), abs=1e-9)


def test_gaussians_are_isotropic_and_an_offset_is_not() -> None:
    vectors = np.random.default_rng(0).normal(size=(1000, 50))
    assert mean_cosine(vectors) == pytest.approx(0.0, abs=0.01)
    assert mean_cosine(vectors + 100) == pytest.approx(1.0, abs=0.01)


def test_edge_cases() -> None:
    assert np.isnan(mean_cosine(np.ones((1, 3))))
    assert mean_cosine(np.zeros((3, 2))) == 0.0
    assert mean_cosine(np.array([[1.0, 0], [-1.0, 0]])) == -1.0


def test_self_similarity_counts_each_word_once_per_text() -> None:
    east, north = [1.0, 0.0], [0.0, 1.0]
    vectors = np.array([east, east, north, east, east, north])
    words = ["bank", "the", "Bank", "the", "the", "bank"]
    texts = np.array([0, 0, 1, 1, 2, 1])  # the last "bank" is in the same text as another one
    assert self_similarity(vectors, words, texts, least=2) == pytest.approx((0.0 + 1.0) / 2)
    assert self_similarity(vectors, words, texts, least=3) == pytest.approx(1.0)  # only "the"
    assert np.isnan(self_similarity(vectors, words, texts, least=4))
    assert np.isnan(self_similarity(vectors[:4], [".", ".", ".", "."], np.arange(4), least=2))  # not a word
