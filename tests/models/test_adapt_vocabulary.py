"""Another vocabulary on an old model, and more positions."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.adapt_vocabulary import extend_positions, replace_vocabulary
from pretune.models.loading import load
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.packed import pack
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.shared_vocabulary import match_tokens
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import Kind, train_on_documents
from tests.support.texts import RUSSIAN, english_documents

WIDTHS = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 24, "hidden_dropout_prob": 0.0,
    "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0, "dropout": 0.0,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
}  # fmt: skip


@cache
def tokenizer(kind: Kind, size: int = 350, russian: bool = False) -> Tokenizer:
    texts = RUSSIAN if russian else english_documents()[:2]
    return train_on_documents([Document(text, Path("x"), 1) for text in texts], kind, size, fit=True)


def small(family: str, words: Tokenizer, objective: str, **sizes: Any) -> Model:
    found = FAMILIES[family]
    ids = {"pad_token_id": words.role("padding"), "vocab_size": words.size + 3}  # some rows only round the size
    keys = {field.name for field in fields(found.config)}  # WIDTHS has those of all families
    config = found.read_config({key: value for key, value in (WIDTHS | ids | sizes).items() if key in keys})
    torch.manual_seed(0)
    model = Model(found, config, Network(found.build(config)), words, objective)
    model.add_heads(parse_objective(objective).objectives)
    for tensor in model.root.tensors().values():
        torch.nn.init.normal_(tensor.detach(), std=0.2)
    model.root.eval().requires_grad_(False)
    return model


@pytest.mark.parametrize(("old", "new"), [("wordpiece", "byte-bpe"), ("byte-bpe", "raw-unigram"), ("raw-unigram", "wordpiece")])  # fmt: skip
def test_tokens_of_different_kinds_match_by_what_they_mean(old: Kind, new: Kind) -> None:
    before, after = tokenizer(old), tokenizer(new)
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


def test_a_vocabulary_matches_itself_whole() -> None:
    words = tokenizer("wordpiece")
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
    old, new = tokenizer("byte-bpe"), tokenizer("byte-bpe", 400, russian=True)
    model = small(family, old, objective)
    made, report = replace_vocabulary(model, new)
    where = match_tokens(old, new)
    matched = np.flatnonzero(where >= 0)
    assert report["matched"] == len(matched) == new.size - report["from_the_mean"]
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


def test_positions_that_are_counted_from_the_padding_token_move_with_it() -> None:
    old, new = tokenizer("byte-bpe"), tokenizer("wordpiece")
    assert old.role("padding") == new.role("padding")
    model = small("roberta", old, "mlm")
    shifted = small("roberta", old, "mlm", pad_token_id=7, max_position_embeddings=30)
    for source in (model, shifted):
        made, _ = replace_vocabulary(source, new)
        where = match_tokens(old, new)
        ids = np.flatnonzero(where >= 0)[:9]
        ours = made.backbone(pack(ids, np.array([9]))).last
        torch.testing.assert_close(ours, source.backbone(pack(where[ids], np.array([9]))).last)
        assert made.backbone.longest == source.backbone.longest
        assert made.config.pad_token_id == new.role("padding")


@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm"), ("roberta", "mlm"), ("gpt2", "lm"), ("bart", "denoise")])  # fmt: skip
@pytest.mark.parametrize("how", ["copy", "interpolate"])
def test_more_positions(family: str, objective: str, how: Any, tmp_path: Path) -> None:
    model = small(family, tokenizer("byte-bpe"), objective)
    was = model.backbone.longest
    made, report = extend_positions(model, 61, how)
    assert made.backbone.longest == 61
    assert (report["positions"], report["were"]) == (61, was)
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
    assert load(tmp_path).backbone.longest == 61
    with pytest.raises(PretuneError, match=f"already has {was} positions; give more"):
        extend_positions(model, was)


@pytest.mark.parametrize(("family", "objective", "kind"), [("modernbert", "mlm", "rotary"), ("t5", "spans", "relative"), ("marian", "translate", "sinusoidal")])  # fmt: skip
def test_models_without_learned_positions_need_no_more(family: str, objective: str, kind: str) -> None:
    model = small(family, tokenizer("byte-bpe"), objective)
    with pytest.raises(
        PretuneError, match=rf"{family}: there are no learned positions to extend: positions are {kind}"
    ):
        extend_positions(model, 4096)


def test_sines_that_are_kept_as_a_table_are_computed(tmp_path: Path) -> None:
    model = small("xlm", tokenizer("byte-bpe"), "mlm", sinusoidal_embeddings=True, emb_dim=16, n_layers=2, n_heads=2)
    model.backbone.embed.positions.freeze_sinusoidal()
    made, _ = extend_positions(model, 50)
    table = made.backbone.embed.positions.weight
    assert table.shape == (50, 16)
    assert torch.equal(table[:24], model.backbone.embed.positions.weight)
    assert table[24:].abs().max() <= 1
