"""Replacing the vocabulary of a model, and extending its positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.models.adapt_vocabulary import extend_positions, replace_vocabulary
from pretune.models.loading import load
from pretune.packed import pack
from pretune.text.tokenizers.shared_vocabulary import match_tokens
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind
from tests.support.tiny_models import random_model, small_tokenizer


@pytest.mark.parametrize(("old", "new"), [("wordpiece", "byte-level-bpe"), ("byte-level-bpe", "sentencepiece-unigram"), ("sentencepiece-unigram", "wordpiece")])  # fmt: skip
def test_tokens_of_different_tokenizers_match_by_text_and_role(old: Kind, new: Kind) -> None:
    before, after = small_tokenizer(old), small_tokenizer(new)
    where = match_tokens(before, after)
    assert len(where) == after.size and where.max() < before.size
    for role in ("mask", "start", "separator", "padding"):
        assert where[after.role(role)] == before.role(role)

    def token(words: Tokenizer, text: str) -> int:
        (number,) = words.encode(text)
        return number

    spaced = " the" if "byte" in new else "the"
    assert where[token(after, spaced)] == token(before, " the" if "byte" in old else "the")
    plain = np.flatnonzero((where >= 0) & ~after.specials)
    assert len(plain) > 40
    for number in plain:
        texts = [
            words.decode([int(i)]).strip().removeprefix("##") for words, i in ((after, number), (before, where[number]))
        ]
        assert texts[0] == texts[1]


def test_every_token_of_a_vocabulary_matches_itself() -> None:
    words = small_tokenizer("wordpiece")
    assert match_tokens(words, words).tolist() == list(range(words.size))


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        ("bert", "mlm+nsp"),
        ("electra", "rtd"),
        ("gpt2", "lm"),
        ("modernbert", "mlm"),
        ("bart", "denoise"),
        ("mt5", "spans"),
    ],
)
def test_shared_tokens_keep_their_vectors_and_biases_and_the_rest_start_from_the_mean(
    family: str, objective: str, tmp_path: Path
) -> None:
    old, new = small_tokenizer("byte-level-bpe"), small_tokenizer("byte-level-bpe", 400, russian=True)
    model = random_model(family, old, objective)
    made, report = replace_vocabulary(model, new)
    where = match_tokens(old, new)
    matched = np.flatnonzero(where >= 0)
    assert report["matched"] == len(matched) == new.size - report["initialized_from_mean"]
    assert 200 < len(matched) < new.size
    assert set(report["unmatched_examples"]) <= set(new.vocabulary) - set(old.vocabulary)
    before, after = model.root.tensors(), made.root.tensors()
    resized = [name for name, tensor in after.items() if new.size in tensor.shape]
    assert any(name.endswith("embed.tokens") for name in resized)
    for name, tensor in after.items():
        if name not in resized:
            assert torch.equal(tensor, before[name]), name
            continue
        dimension = list(tensor.shape).index(new.size)
        ours, theirs = tensor.movedim(dimension, 0), before[name].movedim(dimension, 0)
        assert torch.equal(ours[matched], theirs[where[matched]])
        mean = theirs[: old.size].mean(0)
        torch.testing.assert_close(ours[where < 0], mean.expand_as(ours[where < 0]))
    made.save(tmp_path)
    again = load(tmp_path)
    assert again.tokenizer is not None and again.tokenizer.digest == new.digest
    assert again.config.vocab_size == new.size
    assert not again.untrained


def test_position_offsets_follow_the_padding_token() -> None:
    old, new = small_tokenizer("byte-level-bpe"), small_tokenizer("wordpiece")
    assert old.role("padding") == new.role("padding")
    model = random_model("roberta", old, "mlm")
    shifted = random_model("roberta", old, "mlm", pad_token_id=7, max_position_embeddings=30)
    for source in (model, shifted):
        made, _ = replace_vocabulary(source, new)
        where = match_tokens(old, new)
        ids = np.flatnonzero(where >= 0)[:9]
        ours = made.backbone(pack(ids, np.array([9]))).last
        torch.testing.assert_close(ours, source.backbone(pack(where[ids], np.array([9]))).last)
        assert made.backbone.max_positions == source.backbone.max_positions
        assert made.config.pad_token_id == new.role("padding")


@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm"), ("roberta", "mlm"), ("gpt2", "lm"), ("bart", "denoise")])  # fmt: skip
@pytest.mark.parametrize("how", ["copy", "interpolate"])
def test_extending_positions_copies_or_interpolates_them(family: str, objective: str, how: Any, tmp_path: Path) -> None:
    model = random_model(family, small_tokenizer("byte-level-bpe"), objective)
    was = model.backbone.max_positions
    made, report = extend_positions(model, 61, how)
    assert made.backbone.max_positions == 61
    assert (report["positions"], report["before"]) == (61, was)
    old, learned = (
        found.embed.positions.weight[found.embed.positions.first :] for found in (model.backbone, made.backbone)
    )
    if how == "copy":
        assert torch.equal(learned, torch.cat([old] * 4)[:61])
        packed = pack(np.arange(10, 20), np.array([10]))
        sides = (packed, packed) if family == "bart" else (packed,)
        assert torch.equal(made.backbone(*sides).last, model.backbone(*sides).last)
    else:
        torch.testing.assert_close(learned[[0, -1]], old[[0, -1]])
        torch.testing.assert_close(learned[30], (old[(was - 1) // 2] + old[was // 2]) / 2, atol=1e-5, rtol=1e-5)
    made.save(tmp_path)
    assert load(tmp_path).backbone.max_positions == 61
    with pytest.raises(PretuneError, match=f"already has {was} positions; give a number above"):
        extend_positions(model, was)


@pytest.mark.parametrize(("family", "objective", "kind"), [("modernbert", "mlm", "rotary"), ("t5", "spans", "relative"), ("marian", "translate", "sinusoidal")])  # fmt: skip
def test_extending_positions_is_refused_without_learned_positions(family: str, objective: str, kind: str) -> None:
    model = random_model(family, small_tokenizer("byte-level-bpe"), objective)
    with pytest.raises(
        PretuneError, match=rf"{family}: there are no learned positions to extend: positions are {kind}"
    ):
        extend_positions(model, 4096)


def test_frozen_sinusoidal_positions_are_extended_by_their_formula(tmp_path: Path) -> None:
    model = random_model(
        "xlm", small_tokenizer("byte-level-bpe"), "mlm", sinusoidal_embeddings=True, emb_dim=16, n_layers=2, n_heads=2
    )
    model.backbone.embed.positions.freeze_sinusoidal()
    made, _ = extend_positions(model, 50)
    table = made.backbone.embed.positions.weight
    assert table.shape == (50, 16)
    assert torch.equal(table[:24], model.backbone.embed.positions.weight)
    assert table[24:].abs().max() <= 1
