"""BART, mBART and Marian: one wiring, three layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.dropout import share_dropout_seed
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.support.seq2seq_parity import Pair, assert_classifier, assert_parity, assert_round_trip, randomize, writing
from tests.support.texts import RUSSIAN

SMALL = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 40, "max_position_embeddings": 20,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", {}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("mbart", {"scale_embedding": True}),
    "marian": ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    "transformer": ("marian", {"scale_embedding": True, "activation_function": "relu"}),
}


def make_peer(folder: Path, variant: str) -> Any:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    kind, changes = VARIANTS[variant]
    return randomize(AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **(SMALL | changes))), folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_logits_loss_and_gradients_are_the_peers(variant: str, tmp_path: Path) -> None:
    assert_parity(make_peer(tmp_path, variant), tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_and_import(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    peer = make_peer(tmp_path / "peer", variant)
    assert_round_trip(peer, tmp_path / "peer", tmp_path, AutoModelForSeq2SeqLM)


def test_a_classifier_goes_both_ways(tmp_path: Path) -> None:
    assert_classifier("bart", SMALL, tmp_path)


@pytest.mark.parametrize("variant", ["bart", "mbart", "marian"])
def test_a_bare_model_and_any_of_the_tied_names_load(variant: str, tmp_path: Path) -> None:
    peer = make_peer(tmp_path, variant)
    whole = load_model(tmp_path).root.state_dict()
    peer.model.save_pretrained(tmp_path / "bare")
    tensors = load_file(tmp_path / "bare" / "model.safetensors")
    for name in ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        others = {key: value for key, value in tensors.items() if key != "shared.weight"}
        save_file(others | {name: tensors["shared.weight"]}, tmp_path / "bare" / "model.safetensors")
        for key, value in load_model(tmp_path / "bare").root.state_dict().items():
            assert torch.equal(value, whole[key])


def test_the_bias_of_logits_is_kept_and_never_learned(tmp_path: Path) -> None:
    peer = make_peer(tmp_path, "bart")
    head = load_model(tmp_path, writing()).root.heads["spans"]
    assert torch.equal(head.bias, peer.final_logits_bias)
    assert not list(head.parameters())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["final_logits_bias"]  # the peer takes zeros then
    save_file(tensors, tmp_path / "model.safetensors")
    assert not load_model(tmp_path, writing()).root.heads["spans"].bias.any()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    make_peer(tmp_path, "marian")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.encoder.layernorm_embedding.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"unknown tensors for marian: model\.encoder\.layernorm_embedding\.weight"):
        load_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"share_encoder_decoder_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        PretuneError,
        match=r"config\.json: share_encoder_decoder_embeddings false is not supported for marian; only true",
    ):
        load_model(tmp_path)


def test_a_marian_with_two_models_of_pieces_loads_without_a_tokenizer(tmp_path: Path) -> None:
    make_peer(tmp_path, "marian")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert load_model(tmp_path).tokenizer is None


def test_special_ids_are_the_tokenizers(tmp_path: Path) -> None:
    """A model of our own with a tokenizer of its own: the peer must generate with these ids, not with the preset's."""
    from transformers import AutoConfig

    tokenizer = train_on_documents([Document(text, Path("x"), 1) for text in RUSSIAN * 4], "bpe", 120)
    for kind, start in (("bart", "end"), ("marian", "padding"), ("t5", "padding")):
        family = FAMILIES[kind]
        config = family.read_config({**SMALL, "vocab_size": 128, "num_layers": 1, "d_kv": 8, "d_ff": 8, "num_heads": 1})
        Model(family, config, Network(family.build(config)), tokenizer).save(tmp_path)
        peer = AutoConfig.from_pretrained(tmp_path)
        assert peer.pad_token_id == tokenizer.role("padding")
        assert peer.eos_token_id == tokenizer.role("end")
        assert peer.decoder_start_token_id == tokenizer.role(start)
        assert kind != "bart" or peer.bos_token_id == tokenizer.role("start")


def test_learned_positions_end(tmp_path: Path) -> None:
    make_peer(tmp_path / "bart", "bart")
    make_peer(tmp_path / "marian", "marian")
    assert load_model(tmp_path / "bart").backbone.max_positions == 20
    assert load_model(tmp_path / "marian").backbone.max_positions is None


@pytest.mark.parametrize("place", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_is_off_unless_training(place: str) -> None:
    family = FAMILIES["bart"]
    model = family.build(family.read_config(SMALL | {"dropout": 0.0, place: 0.5}))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    pair = Pair.make(60)
    trained = model(pair.source.packed, pair.target.packed).last
    evaluated = model.eval()(pair.source.packed, pair.target.packed).last
    assert not torch.equal(trained, evaluated)
    assert torch.equal(evaluated, model(pair.source.packed, pair.target.packed).last)
