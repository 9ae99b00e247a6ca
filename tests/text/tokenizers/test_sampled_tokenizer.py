"""Tests of tokenizers that sample segmentations, with the normalization and words of every kind of tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.tagged import TaggedSentences
from pretune.text.tokenizers.sampled_tokenizer import LONGEST, SampledTokenizer, SubwordRegularization
from pretune.text.tokenizers.subword_sampling import SubwordSampling
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind
from tests.support.objective_data import store
from tests.support.texts import english_documents

KINDS: list[Kind] = ["bpe", "byte-level-bpe", "unigram", "sentencepiece-bpe", "sentencepiece-unigram"]
TEXTS = [*english_documents()[0].split(". ")[:12], " The cat's  naïve Привет 한국 x1.", "日本語 ﬁne [MASK]", ""]


def sampled(kind: Kind, epoch: int = 0, strength: float | None = None) -> SampledTokenizer:
    settings = (
        SubwordSampling(bpe_dropout=strength or 0.2)
        if "bpe" in kind
        else SubwordSampling(unigram_alpha=strength or 0.2)
    )
    return SubwordRegularization(store(kind).tokenizer, settings).epoch(EpochRandom(5, epoch))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_spell_the_same_text(kind: Kind) -> None:
    plain, made = store(kind).tokenizer, sampled(kind)
    ids, lengths = made.encode_many(TEXTS)
    usual, usual_lengths = plain.encode_many(TEXTS)
    assert len(ids) > 1.05 * len(usual) and len(lengths) == len(usual_lengths)
    parts, usual_parts = (np.split(x, np.cumsum(n)[:-1]) for x, n in ((ids, lengths), (usual, usual_lengths)))
    assert plain.decode_many(parts) == plain.decode_many(usual_parts)
    assert {token for token in ids if plain.specials[token]} <= set(usual.tolist())
    assert made.encode(TEXTS[0]) == plain.encode(TEXTS[0])  # never sampled


@pytest.mark.parametrize("kind", KINDS)
def test_samples_depend_on_seed_epoch_and_text_only(kind: Kind) -> None:
    ids, lengths = sampled(kind).encode_many(TEXTS)
    again, _ = sampled(kind).encode_many(TEXTS)
    assert np.array_equal(ids, again)
    backward = sampled(kind)
    parts = [backward.encode_many([text])[0] for text in reversed(TEXTS)][::-1]
    assert np.array_equal(ids, np.concatenate(parts)) and [len(part) for part in parts] == lengths.tolist()
    assert not np.array_equal(ids, sampled(kind, epoch=1).encode_many(TEXTS)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_those_of_the_sampled_tokens(kind: Kind) -> None:
    ids, lengths = sampled(kind).encode_many(TEXTS)
    found, counts, offsets = sampled(kind).encode_with_offsets(TEXTS)
    assert np.array_equal(ids, found) and np.array_equal(lengths, counts)
    _, usual_counts, usual = store(kind).tokenizer.encode_with_offsets(TEXTS)
    for text, own, theirs in zip(
        TEXTS, *(np.split(o, np.cumsum(n)[:-1]) for o, n in ((offsets, counts), (usual, usual_counts))), strict=True
    ):
        covered = [{at for start, end in pairs for at in range(start, end)} for pairs in (own, theirs)]
        assert covered[0] == covered[1]  # the same characters of the text
        assert (np.diff(own[:, 0]) >= 0).all() and own.max(initial=0) <= len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_tagged_words_own_the_sampled_pieces_that_spell_them(kind: Kind) -> None:
    rows = TaggedSentences(Path("rows"), {}, [["The", "compiler", "accepts", "x", "."], ["Modules", "define", "names"]])
    made, usual = (rows.tokenize(tokenizer) for tokenizer in (sampled(kind), store(kind).tokenizer))
    assert len(made.rows.ids) > len(usual.rows.ids) and len(made.units) == len(usual.units)
    words = store(kind).tokenizer.decode_many(np.split(made.rows.ids, made.units[1:-1]))
    assert [word.strip() for word in words] == [word for sentence in rows.words for word in sentence]


@pytest.mark.parametrize("kind", ["bpe", "byte-level-bpe", "sentencepiece-bpe"])
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_without_dropout_any_text_gets_the_ids_of_the_library(kind: Kind, text: str) -> None:
    made = sampled(kind)
    made.sampler.dropout = 0.0  # type: ignore[attr-defined]
    for ours, library in zip(
        made.encode_with_offsets([text]), store(kind).tokenizer.encode_with_offsets([text]), strict=True
    ):
        assert np.array_equal(ours, library)


def test_words_that_cannot_be_sampled_keep_their_tokens() -> None:
    plain = store("byte-level-bpe").tokenizer
    word = "x" * (LONGEST + 1)
    assert sampled("byte-level-bpe").encode_many([word])[0].tolist() == plain.encode(word)


def test_texts_with_added_tokens_keep_their_tokens_and_the_same_samples_come_back_everywhere() -> None:
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "ab", "bc", "abc", "<x>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("b", "c"), ("ab", "c")]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_tokens(["<x>"])
    tokenizer = Tokenizer(backend, {})
    made = SubwordRegularization(tokenizer, SubwordSampling(bpe_dropout=0.5)).epoch(EpochRandom(0))
    assert made.encode_many(["abc<x>"])[0].tolist() == tokenizer.encode("abc<x>") == [5, 6]
    # Recorded, so that every machine and process is known to sample the same.
    assert "".join(made.tokens(made.encode_many(["abc abc abc abc"])[0])) == "abc" * 4
    assert made.encode_many(["abc abc abc abc"])[0].tolist() == [0, 4, 3, 2, 0, 4, 0, 4]
