"""DeBERTa and DeBERTa-v2 in the peer's hands: distances by themselves and in buckets, heads of both names, checkpoints both ways."""

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
from tests.support.parity import Ragged, assert_same, compare_classifier, compare_export, compare_mlm, save_peer

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c",
}  # fmt: skip
SHARED = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 8}
SMALLS = {"deberta": SMALL, "deberta-v2": SMALL | SHARED}
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


def make_peer(name: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{KINDS[name]}Config")(**(SMALLS[name] | changes))
    return save_peer(getattr(transformers, f"{KINDS[name]}ForMaskedLM"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_are_the_peers(variant: str, tmp_path: Path) -> None:
    name, changes = VARIANTS[variant]
    model = compare_mlm(make_peer(name, tmp_path, **changes), tmp_path, make_batch())
    assert model.backbone.max_positions == (40 if changes.get("position_biased_input") else None)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(
    name: str, legacy: bool, tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM

    peer = make_peer(name, tmp_path / "peer", legacy=legacy)
    heads = {key.partition(".")[0] for key in load_file(tmp_path / "peer" / "model.safetensors")} - {"deberta"}
    assert heads == {"cls" if legacy else "lm_predictions"}
    compare_export(peer, tmp_path / "peer", tmp_path, make_batch(), AutoModelForMaskedLM)


def test_an_export_with_a_convolution_is_loaded_by_the_peer(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    peer = make_peer("deberta-v2", tmp_path / "peer", conv_kernel_size=3)
    compare_export(peer, tmp_path / "peer", tmp_path, make_batch(), AutoModelForMaskedLM)


@pytest.mark.parametrize("name", KINDS)
def test_a_classifier_goes_both_ways(name: str, tmp_path: Path) -> None:
    compare_classifier(FAMILIES[name], SMALLS[name], tmp_path, make_batch())


@pytest.mark.parametrize("name", KINDS)
def test_a_bare_model_loads(name: str, tmp_path: Path) -> None:
    peer = make_peer(name, tmp_path / "whole")
    peer.deberta.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "whole").root, load_model(tmp_path / "bare").root)


@pytest.mark.parametrize("name", KINDS)
def test_what_released_checkpoints_have_besides_is_not_refused(name: str, tmp_path: Path) -> None:
    make_peer(name, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {
        "deberta.embeddings.position_embeddings.weight": torch.zeros(40, 32),
        "mask_predictions.dense.weight": torch.zeros(32, 32),
        "mask_predictions.LayerNorm.bias": torch.zeros(32),
        "mask_predictions.classifier.bias": torch.zeros(1),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path, parse_objective("mlm"))


def test_more_positions_leave_distances_as_they_are() -> None:
    family = FAMILIES["deberta"]
    config = family.read_config(SMALL | {"position_biased_input": True})
    longer, report = extend_positions(Model(family, config, Network(family.build(config))), 50)
    assert (longer.backbone.max_positions, report["were"]) == (50, 40)
    assert longer.backbone.distances.weight.shape == (80, 32)
    config = family.read_config(SMALL)
    with pytest.raises(PretuneError, match="no learned positions to extend: positions are relative"):
        extend_positions(Model(family, config, Network(family.build(config))), 50)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deberta", {"relative_attention": False}, "relative_attention false is not supported"),
        ("deberta", {"pos_att_type": "c2p"}, "pos_att_type 'c2p' is not supported; only 'c2p|p2c'"),
        ("deberta", {"pos_att_type": None}, "pos_att_type None is not supported"),
        ("deberta", {"pooler_hidden_size": 48}, "pooler_hidden_size 48 is not supported for deberta; only 32"),
        ("deberta-v2", {"share_att_key": False}, "share_att_key false is not supported"),
    ],
)
def test_what_we_cannot_wire_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message.replace("|", r"\|")):
        FAMILIES[name].build(FAMILIES[name].read_config(SMALLS[name] | changes))
