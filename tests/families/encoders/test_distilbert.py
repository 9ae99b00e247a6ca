from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from tests.support.family_configs import DISTILBERT
from tests.support.parity import Ragged, assert_same, compare_classifier, compare_export, compare_mlm, save_peer

FAMILY = FAMILIES["distilbert"]


def make_peer(folder: Path, **changes: Any) -> Any:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return save_peer(DistilBertForMaskedLM, DistilBertConfig(**(DISTILBERT | changes)), folder)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_hidden_states_logits_loss_and_gradients_are_the_peers(activation: str, tmp_path: Path) -> None:
    compare_mlm(make_peer(tmp_path, activation=activation), tmp_path, Ragged.make(60, columns={}))


def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    peer = make_peer(tmp_path / "peer")
    compare_export(peer, tmp_path / "peer", tmp_path, Ragged.make(60, columns={}), AutoModelForMaskedLM)


def test_a_classifier_goes_both_ways(tmp_path: Path) -> None:
    compare_classifier(FAMILY, DISTILBERT, tmp_path, Ragged.make(60, columns={}))


def test_a_bare_model_loads(tmp_path: Path) -> None:
    make_peer(tmp_path / "peer").distilbert.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "peer").root, load_model(tmp_path / "bare").root)


def test_sinusoidal_positions_start_as_the_peers_and_stay(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    config = DISTILBERT | {"sinusoidal_pos_embds": True}
    positions = FAMILY.build(FAMILY.read_config(config)).embed.positions
    peer = DistilBertModel(DistilBertConfig(**config))
    torch.testing.assert_close(positions.weight, peer.embeddings.position_embeddings.weight)
    assert torch.equal(positions.weight, SinusoidalPositions(32)(torch.arange(40)))
    assert not positions.weight.requires_grad


def test_segments_change_nothing(tmp_path: Path) -> None:
    make_peer(tmp_path)
    model = load_model(tmp_path)
    with_segments = Ragged.make(60).packed
    without = Ragged.make(60, columns={}).packed
    assert torch.equal(model.backbone(with_segments).last, model.backbone(without).last)
