"""DeBERTa and DeBERTa-v2 against `transformers`: relative positions with and without buckets, both head layouts, round trips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.adapt_vocabulary import extend_positions
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from tests.support.family_configs import DEBERTA, DEBERTAS
from tests.support.parity import Ragged, assert_same, compare_classifier, compare_export, compare_mlm, save_reference

KINDS = {"deberta": "Deberta", "deberta-v2": "DebertaV2"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as published": ("deberta", {}),
    "clamped": ("deberta", {"max_relative_positions": 5}),
    "others": (
        "deberta",
        {"position_biased_input": True, "type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    ),
    "v3": ("deberta-v2", {}),
    "v3, far": ("deberta-v2", {"max_relative_positions": 14}),
    "v2": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "v2 without buckets": ("deberta-v2", {"position_buckets": -1, "norm_rel_ebd": "none", "pos_att_type": ["p2c", "c2p"]}),
}  # fmt: skip


def make_batch() -> Ragged:
    return Ragged.make(60, lengths=(7, 25, 1, 12))


def make_reference(name: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{KINDS[name]}Config")(**(DEBERTAS[name] | changes))
    return save_reference(getattr(transformers, f"{KINDS[name]}ForMaskedLM"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    name, changes = VARIANTS[variant]
    model = compare_mlm(make_reference(name, tmp_path, **changes), tmp_path, make_batch())
    assert model.backbone.max_positions == (40 if changes.get("position_biased_input") else None)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(name: str, legacy: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference(name, tmp_path / "reference", legacy=legacy)
    heads = {key.partition(".")[0] for key in load_file(tmp_path / "reference" / "model.safetensors")} - {"deberta"}
    assert heads == {"cls" if legacy else "lm_predictions"}
    compare_export(reference, tmp_path / "reference", tmp_path, make_batch(), AutoModelForMaskedLM)


def test_an_export_with_a_convolution_loads_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference("deberta-v2", tmp_path / "reference", conv_kernel_size=3)
    compare_export(reference, tmp_path / "reference", tmp_path, make_batch(), AutoModelForMaskedLM)


@pytest.mark.parametrize("name", KINDS)
def test_classifier_round_trips_through_transformers(name: str, tmp_path: Path) -> None:
    compare_classifier(FAMILIES[name], DEBERTAS[name], tmp_path, make_batch())


@pytest.mark.parametrize("name", KINDS)
def test_a_model_without_heads_loads(name: str, tmp_path: Path) -> None:
    reference = make_reference(name, tmp_path / "whole")
    reference.deberta.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "whole").root, load_model(tmp_path / "bare").root)


@pytest.mark.parametrize("name", KINDS)
def test_additional_tensors_of_released_checkpoints_are_accepted(name: str, tmp_path: Path) -> None:
    make_reference(name, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {
        "deberta.embeddings.position_embeddings.weight": torch.zeros(40, 32),
        "mask_predictions.dense.weight": torch.zeros(32, 32),
        "mask_predictions.LayerNorm.bias": torch.zeros(32),
        "mask_predictions.classifier.bias": torch.zeros(1),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path, parse_objective("mlm"))


def test_extending_positions_keeps_relative_positions() -> None:
    family = FAMILIES["deberta"]
    config = family.read_config(DEBERTA | {"position_biased_input": True})
    longer, report = extend_positions(Model(family, config, Network(family.build(config))), 50)
    assert (longer.backbone.max_positions, report["before"]) == (50, 40)
    assert longer.backbone.distances.weight.shape == (80, 32)
    config = family.read_config(DEBERTA)
    with pytest.raises(PretuneError, match="no learned positions to extend: positions are relative"):
        extend_positions(Model(family, config, Network(family.build(config))), 50)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deberta", {"relative_attention": False}, "relative_attention false is not supported"),
        (
            "deberta",
            {"pos_att_type": "c2p"},
            "pos_att_type 'c2p' is not supported; use a model with pos_att_type 'c2p|p2c'",
        ),
        ("deberta", {"pos_att_type": None}, "pos_att_type None is not supported"),
        (
            "deberta",
            {"pooler_hidden_size": 48},
            "pooler_hidden_size 48 is not supported for deberta; use a model with pooler_hidden_size 32",
        ),
        ("deberta-v2", {"share_att_key": False}, "share_att_key false is not supported"),
    ],
)
def test_unsupported_configurations_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message.replace("|", r"\|")):
        FAMILIES[name].build(FAMILIES[name].read_config(DEBERTAS[name] | changes))
