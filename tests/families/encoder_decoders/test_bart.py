"""BART, mBART and Marian against `transformers`: one architecture, three checkpoint layouts."""

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
from tests.support.family_configs import BART
from tests.support.seq2seq_parity import (
    Pair,
    assert_classifier,
    assert_parity,
    assert_round_trip,
    randomize,
    vocabulary_head_only,
)
from tests.support.texts import RUSSIAN

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", {}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("mbart", {"scale_embedding": True}),
    "marian": ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    "transformer": ("marian", {"scale_embedding": True, "activation_function": "relu"}),
}


def make_reference(folder: Path, variant: str) -> Any:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    kind, changes = VARIANTS[variant]
    return randomize(AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **(BART | changes))), folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    assert_parity(make_reference(tmp_path, variant), tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    reference = make_reference(tmp_path / "reference", variant)
    assert_round_trip(reference, tmp_path / "reference", tmp_path, AutoModelForSeq2SeqLM)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    assert_classifier("bart", BART, tmp_path)


@pytest.mark.parametrize("variant", ["bart", "mbart", "marian"])
def test_a_model_without_heads_and_any_of_the_tied_tensors_load(variant: str, tmp_path: Path) -> None:
    reference = make_reference(tmp_path, variant)
    whole = load_model(tmp_path).root.state_dict()
    reference.model.save_pretrained(tmp_path / "bare")
    tensors = load_file(tmp_path / "bare" / "model.safetensors")
    for name in ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        others = {key: value for key, value in tensors.items() if key != "shared.weight"}
        save_file(others | {name: tensors["shared.weight"]}, tmp_path / "bare" / "model.safetensors")
        for key, value in load_model(tmp_path / "bare").root.state_dict().items():
            assert torch.equal(value, whole[key])


def test_final_logits_bias_is_kept_and_not_trained(tmp_path: Path) -> None:
    reference = make_reference(tmp_path, "bart")
    head = load_model(tmp_path, vocabulary_head_only()).root.heads["spans"]
    assert torch.equal(head.bias, reference.final_logits_bias)
    assert not list(head.parameters())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["final_logits_bias"]  # `transformers` uses zeros then
    save_file(tensors, tmp_path / "model.safetensors")
    assert not load_model(tmp_path, vocabulary_head_only()).root.heads["spans"].bias.any()


def test_unknown_tensors_and_unsupported_keys_are_refused(tmp_path: Path) -> None:
    make_reference(tmp_path, "marian")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.encoder.layernorm_embedding.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"unknown tensors for marian: model\.encoder\.layernorm_embedding\.weight"):
        load_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"share_encoder_decoder_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        PretuneError,
        match=r"config\.json: share_encoder_decoder_embeddings false is not supported for marian; use a model with share_encoder_decoder_embeddings true",
    ):
        load_model(tmp_path)


def test_a_marian_model_with_two_sentencepiece_files_loads_without_a_tokenizer(tmp_path: Path) -> None:
    make_reference(tmp_path, "marian")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert load_model(tmp_path).tokenizer is None


def test_special_token_ids_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    """An export of a custom model with a custom tokenizer has its special ids, so that `transformers` generates with them."""
    from transformers import AutoConfig

    tokenizer = train_on_documents([Document(text, Path("x"), 1) for text in RUSSIAN * 4], "bpe", 120)
    for kind, start in (("bart", "end"), ("marian", "padding"), ("t5", "padding")):
        family = FAMILIES[kind]
        config = family.read_config({**BART, "vocab_size": 128, "num_layers": 1, "d_kv": 8, "d_ff": 8, "num_heads": 1})
        Model(family, config, Network(family.build(config)), tokenizer).save(tmp_path)
        reference = AutoConfig.from_pretrained(tmp_path)
        assert reference.pad_token_id == tokenizer.role("padding")
        assert reference.eos_token_id == tokenizer.role("end")
        assert reference.decoder_start_token_id == tokenizer.role(start)
        assert kind != "bart" or reference.bos_token_id == tokenizer.role("start")


def test_sequences_longer_than_the_learned_positions_are_refused(tmp_path: Path) -> None:
    make_reference(tmp_path / "bart", "bart")
    make_reference(tmp_path / "marian", "marian")
    assert load_model(tmp_path / "bart").backbone.max_positions == 20
    assert load_model(tmp_path / "marian").backbone.max_positions is None


@pytest.mark.parametrize("place", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_is_inactive_in_evaluation(place: str) -> None:
    family = FAMILIES["bart"]
    model = family.build(family.read_config(BART | {"dropout": 0.0, place: 0.5}))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    pair = Pair.make(60)
    trained = model(pair.source.packed, pair.target.packed).last
    evaluated = model.eval()(pair.source.packed, pair.target.packed).last
    assert not torch.equal(trained, evaluated)
    assert torch.equal(evaluated, model(pair.source.packed, pair.target.packed).last)
