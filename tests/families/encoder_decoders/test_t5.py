"""T5 and mT5 against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load_model
from pretune.models.model import Network
from pretune.nn.dropout import share_dropout_seed
from tests.support.family_configs import T5, T5_VARIANTS
from tests.support.parity import close
from tests.support.seq2seq_parity import (
    Pair,
    assert_classifier,
    assert_parity,
    assert_round_trip,
    randomize,
    vocabulary_head_only,
)
from tests.support.texts import RUSSIAN, T5_IDS, russian_pieces


def make_reference(folder: Path, variant: str, **others: Any) -> Any:
    from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

    kind, changes = T5_VARIANTS[variant]
    config, model = {
        "t5": (T5Config, T5ForConditionalGeneration),
        "mt5": (MT5Config, MT5ForConditionalGeneration),
    }[kind]
    reference = model(config(**(T5 | changes | others)))
    if not changes.get("tie_word_embeddings", True):  # `transformers` ties them until a checkpoint is loaded
        reference.lm_head.weight = torch.nn.Parameter(torch.empty(60, 32))
    return randomize(reference, folder)


@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    assert_parity(make_reference(tmp_path, variant), tmp_path)


@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    reference = make_reference(tmp_path / "reference", variant)
    assert_round_trip(reference, tmp_path / "reference", tmp_path, AutoModelForSeq2SeqLM)


@pytest.mark.parametrize("variant", ["1.0", "mt5"])
def test_classifier_round_trips_through_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = T5_VARIANTS[variant]
    assert_classifier(family, T5 | changes, tmp_path)


@pytest.mark.not_fast
def test_a_folder_like_that_of_rut5_loads(tmp_path: Path) -> None:
    """The folder has older config keys and a Cyrillic sentencepiece model, but no tokenizer.json and no sentinel tokens."""
    from transformers import T5Tokenizer

    reference = make_reference(tmp_path, "1.0", vocab_size=192)
    (tmp_path / "spiece.model").write_bytes(russian_pieces(**T5_IDS))
    config = json.loads((tmp_path / "config.json").read_text())
    for newer in ("scale_decoder_outputs", "tie_word_embeddings", "dense_act_fn", "is_gated_act"):
        config.pop(newer)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path, vocabulary_head_only())
    assert model.root.eval().backbone.embed.vocabulary == 192
    assert model.require_tokenizer().role("sentinel 0") == 179

    tokens = T5Tokenizer.from_pretrained(tmp_path)(RUSSIAN, padding=True, return_tensors="pt")
    theirs = reference(**tokens, labels=tokens["input_ids"]).logits  # the decoder reads the same tokens, shifted by one
    (batch,) = text_batches(model, RUSSIAN)
    ours = model.root.heads["spans"](model.backbone(*batch.packed).last, model.backbone.embed.tokens)
    for place, row in enumerate(batch.rows):
        start, end = batch.packed[1].offsets[place : place + 2].tolist()
        close(ours[start:end], theirs[row][tokens["attention_mask"][row].bool()])

    model.save(tmp_path / "again")
    again = load_model(tmp_path / "again", vocabulary_head_only())
    assert again.require_tokenizer().roles == model.require_tokenizer().roles
    assert again.config == model.config


def test_a_checkpoint_may_contain_any_of_the_tied_tensors(tmp_path: Path) -> None:
    reference = make_reference(tmp_path, "1.0")
    whole = load_model(tmp_path).root.state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        others = {key: value for key, value in tensors.items() if key != "shared.weight"}
        save_file(
            others | {name: reference.shared.weight.data, old: torch.zeros(12, 4)}, tmp_path / "model.safetensors"
        )
        for key, value in load_model(tmp_path).root.state_dict().items():
            assert torch.equal(value, whole[key])
    others["decoder.adapter.weight"] = torch.zeros(2)
    save_file(others | {"shared.weight": reference.shared.weight.data}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"unknown tensors for t5: decoder\.adapter\.weight"):
        load_model(tmp_path)


def test_a_missing_output_embedding_is_tied_to_the_input_embedding(tmp_path: Path) -> None:
    """`transformers` saves it only if it differs, and never scales the outputs of version 1.1."""
    from transformers import T5ForConditionalGeneration

    make_reference(tmp_path, "1.1")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert_parity(T5ForConditionalGeneration.from_pretrained(tmp_path).eval(), tmp_path)


@pytest.mark.not_fast
def test_a_model_that_scales_its_outputs_may_have_an_untied_output_embedding(tmp_path: Path) -> None:
    """Scaled outputs and tied embeddings are independent of each other."""
    from transformers import T5ForConditionalGeneration

    make_reference(tmp_path, "1.0")
    tensors = load_file(tmp_path / "model.safetensors")
    own = torch.randn_like(tensors["shared.weight"], generator=torch.Generator().manual_seed(0))
    save_file(tensors | {"lm_head.weight": own}, tmp_path / "model.safetensors")
    assert_parity(T5ForConditionalGeneration.from_pretrained(tmp_path).eval(), tmp_path)


@pytest.mark.parametrize(
    ("given", "scaled"),
    [
        ({}, True),
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),  # as exported for version 1.1
    ],
)
def test_older_config_keys_decide_whether_outputs_are_scaled(given: dict[str, bool], scaled: bool) -> None:
    from transformers import T5Config

    assert FAMILIES["t5"].read_config(given).scale_decoder_outputs == T5Config(**given).scale_decoder_outputs == scaled
    if "scale_decoder_outputs" not in given:
        assert not FAMILIES["mt5"].read_config(given).scale_decoder_outputs


def test_all_layers_of_a_stack_share_the_relative_position_bias(tmp_path: Path) -> None:
    make_reference(tmp_path, "1.0")
    model = load_model(tmp_path).root.eval()
    biases = [name for name, _ in model.named_parameters() if "score" in name]
    assert sorted(biases) == ["backbone.encoder.score.weight", "backbone.score.weight"]
    seen: list[Any] = []
    for layer in (*model.backbone.encoder.layers, *model.backbone.layers):
        layer.attention.part.register_forward_hook(lambda module, given, out: seen.append(given[1].score_mod))
    pair = Pair.make(60)
    model.backbone(pair.source.packed, pair.target.packed)
    assert [len(set(seen[:2])), len(set(seen[2:])), len(set(seen))] == [1, 1, 2]
    assert None not in seen
    names = [modules for name, modules in model.backbone.groups() if "embed" in name]
    assert {module.score for module in (model.backbone, model.backbone.encoder)} <= set(names[0])


@pytest.mark.parametrize("variant", ["1.0", "1.1"])
def test_initial_standard_deviations_match_transformers(variant: str) -> None:
    """T5 initializes weights so that the first logits have unit variance, although its attention is not scaled."""
    from transformers import T5Config, T5ForConditionalGeneration

    wide = {"vocab_size": 400, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 6, "num_layers": 1}
    wide |= {"relative_attention_num_buckets": 128} | T5_VARIANTS[variant][1]
    torch.manual_seed(0)
    reference = dict(T5ForConditionalGeneration(T5Config(**wide)).named_parameters())
    family = FAMILIES["t5"]
    root = Network(family.build(family.read_config(wide)))
    ours, rest = family.table.write(root.tensors())
    assert not rest
    for name, tensor in ours.items():
        if "norm" in name:
            assert torch.equal(tensor, torch.ones(128))
        else:
            assert tensor.std().item() == pytest.approx(reference[name].std().item(), rel=0.15), name
    head = root.backbone.vocabulary_head()
    states = torch.randn(200, 128)
    assert head(states, root.backbone.embed.tokens).std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("variant", ["1.0", "1.1"])
def test_dropout_is_inactive_in_evaluation(variant: str) -> None:
    family, changes = T5_VARIANTS[variant]
    model = FAMILIES[family].build(FAMILIES[family].read_config(T5 | changes | {"dropout_rate": 0.5}))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    pair = Pair.make(60)
    trained = model(pair.source.packed, pair.target.packed).last
    evaluated = model.eval()(pair.source.packed, pair.target.packed).last
    assert not torch.equal(trained, evaluated)
    assert (trained == 0).float().mean() == pytest.approx(0.5, abs=0.1)  # after the final norm too
    assert torch.equal(evaluated, model(pair.source.packed, pair.target.packed).last)
