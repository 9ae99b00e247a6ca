"""Tests of BPE-dropout and unigram sampling: they agree with the library without sampling, and with enumeration."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from pretune import PretuneError
from pretune.text.tokenizers.subword_sampling import BPEDropout, SubwordSampling, UnigramSampler

CORPUS = ["abab", "abba", "ababab", "bcbc", "abcabc", "caba", "cabbage", "aabb", "bcab", "gabe", "edge", "bead"] * 3
WORDS = st.text(alphabet="abcdeg", min_size=1, max_size=12)
SCORES = {"a": -2.0, "b": -2.5, "c": -3.0, "ab": -1.5, "bc": -2.0, "abc": -2.2, "ca": -2.7}


@cache
def trained_bpe(prefix: str, suffix: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(continuing_subword_prefix=prefix, end_of_word_suffix=suffix))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    options = {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
    # Two more words, so that every character is in the vocabulary in every place.
    tokenizer.train_from_iterator(
        [*CORPUS, *(f"{c}a{c}" for c in "abcdeg"), *"abcdeg"],
        trainers.BpeTrainer(vocab_size=60, show_progress=False, **options),
    )
    return tokenizer


def content(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def unigram_model(scores: dict[str, float]) -> dict[str, Any]:
    return {"type": "Unigram", "vocab": [["<unk>", 0.0], *scores.items()]}


def segmentations(word: str, pieces: dict[str, float]) -> Iterator[tuple[str, ...]]:
    if not word:
        yield ()
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            yield from ((word[:end], *rest) for rest in segmentations(word[end:], pieces))


@pytest.mark.parametrize(("prefix", "suffix"), [("", ""), ("##", ""), ("", "</w>")])
@given(word=WORDS, seed=st.integers(0, 2**64))
def test_bpe_pieces_concatenate_to_the_word(prefix: str, suffix: str, word: str, seed: int) -> None:
    library = trained_bpe(prefix, suffix)
    model = content(library)
    tokens = {number: token for token, number in model["vocab"].items()}
    for dropout in (0.0, 0.3, 1.0):
        pieces = BPEDropout(model, dropout).sample(word, Random(seed))
        assert pieces is not None
        assert [start for _, start, _ in pieces] == [0, *(end for _, _, end in pieces[:-1])]
        spelled = [tokens[token].removeprefix(prefix).removesuffix(suffix) for token, _, _ in pieces]
        assert spelled == [word[start:end] for _, start, end in pieces]
        if dropout == 0:
            assert [token for token, _, _ in pieces] == library.encode(word).ids
        if dropout == 1:
            assert len(pieces) == len(word)
        assert pieces == BPEDropout(model, dropout).sample(word, Random(seed))


def test_bpe_dropout_skips_merges_with_its_probability() -> None:
    # ab is merged first, then abc: each of the two merges is skipped with the probability 0.3.
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "ab", "abc"])}
    model = {
        "type": "BPE", "vocab": vocabulary, "merges": [["a", "b"], ["ab", "c"]], "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }  # fmt: skip
    sampler = BPEDropout(model, 0.3)
    drawn = Counter(len(sampler.sample("abc", Random(seed)) or ()) for seed in range(4000))
    for pieces, probability in ((1, 0.49), (2, 0.21), (3, 0.3)):
        assert abs(drawn[pieces] / 4000 - probability) < 0.03
    assert BPEDropout(model, 0.3).sample("abd", Random(0)) is None  # unknown character


def test_words_without_pre_tokenizer_are_split_at_space_markers_if_no_piece_crosses_them() -> None:
    marked = {"type": "BPE", "vocab": {}, "merges": [], "continuing_subword_prefix": None, "end_of_word_suffix": None}
    pieces = ["▁", "a", "b", "▁a", "▁▁"]
    within = marked | {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [["▁", "a"], ["▁", "▁"]]}
    assert BPEDropout(within, 0.1).units("▁ab▁a▁▁b") == ["▁ab", "▁a", "▁▁b"]
    across = within | {"vocab": within["vocab"] | {"a▁": 5}, "merges": [["a", "▁"]]}
    assert BPEDropout(across, 0.1).units("▁ab▁a") == ["▁ab▁a"]


@pytest.mark.parametrize(("alpha", "nbest"), [(1.0, None), (0.3, None), (0.0, None), (0.5, 3)])
def test_unigram_samples_are_proportional_to_a_power_of_their_probability(alpha: float, nbest: int | None) -> None:
    word = "abcab"
    scored = {found: sum(SCORES[piece] for piece in found) for found in segmentations(word, SCORES)}
    kept = sorted(scored, key=lambda found: -scored[found])[:nbest]
    weights = {found: math.exp(alpha * scored[found]) for found in kept}
    sampler = UnigramSampler(unigram_model(SCORES), alpha, nbest)
    drawn: Counter[tuple[str, ...]] = Counter()
    for seed in range(4000):
        pieces = sampler.sample(word, Random(seed))
        assert pieces is not None
        drawn[tuple(word[start:end] for _, start, end in pieces)] += 1
    assert drawn.keys() <= weights.keys()
    for found, weight in weights.items():
        assert abs(drawn[found] / 4000 - weight / sum(weights.values())) < 0.03


@given(
    word=st.text(alphabet="abc", min_size=1, max_size=9), seed=st.integers(0, 2**64),
    steps=st.lists(st.integers(-400, -10), min_size=7, max_size=7),
)  # fmt: skip
def test_large_alpha_and_one_best_equal_the_library(word: str, seed: int, steps: list[int]) -> None:
    scores = dict(zip(SCORES, (step / 37 for step in steps), strict=True))
    library = models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0, byte_fallback=False)
    best = sum(scores[token.value] for token in library.tokenize(word))
    for sampler in (UnigramSampler(unigram_model(scores), 1e4), UnigramSampler(unigram_model(scores), 1.0, 1)):
        pieces = sampler.sample(word, Random(seed))
        assert pieces is not None
        assert "".join(word[start:end] for _, start, end in pieces) == word
        # Segmentations with equal scores are equally good.
        assert abs(sum(scores[word[start:end]] for _, start, end in pieces) - best) < 1e-2
    assert sampler.sample(word + "x", Random(seed)) is None


def test_settings_are_checked_against_the_kind_of_the_tokenizer() -> None:
    assert not SubwordSampling(bpe_dropout=0.0).active and SubwordSampling(unigram_alpha=0.0).active
    with pytest.raises(
        PretuneError, match="unigram_alpha applies to Unigram tokenizers, but this model's tokenizer is BPE"
    ):
        SubwordSampling(unigram_alpha=0.1).build({"type": "BPE"})
    with pytest.raises(
        PretuneError, match="bpe_dropout applies to BPE tokenizers, but this model's tokenizer is WordP"
    ):
        SubwordSampling(bpe_dropout=0.1).build({"type": "WordPiece"})
    with pytest.raises(PretuneError, match="unigram_alpha applies to Unigram"):
        SubwordSampling(unigram_alpha=0.0).build({"type": "WordLevel"})
