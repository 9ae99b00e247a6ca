"""DistilBERT against `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from tests.support.family_configs import DISTILBERT
from tests.support.parity import Ragged, assert_same, compare_classifier, compare_export, compare_mlm, save_reference

FAMILY = FAMILIES["distilbert"]


def make_reference(folder: Path, **changes: Any) -> Any:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return save_reference(DistilBertForMaskedLM, DistilBertConfig(**(DISTILBERT | changes)), folder)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_hidden_states_logits_loss_and_gradients_match_transformers(activation: str, tmp_path: Path) -> None:
    compare_mlm(make_reference(tmp_path, activation=activation), tmp_path, Ragged.make(60, columns={}))


def test_export_loads_in_transformers_and_a_second_export_is_identical(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference(tmp_path / "reference")
    compare_export(reference, tmp_path / "reference", tmp_path, Ragged.make(60, columns={}), AutoModelForMaskedLM)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, DISTILBERT, tmp_path, Ragged.make(60, columns={}))


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    make_reference(tmp_path / "reference").distilbert.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "reference").root, load_model(tmp_path / "bare").root)


def test_sinusoidal_positions_match_transformers_and_are_not_trained(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    config = DISTILBERT | {"sinusoidal_pos_embds": True}
    positions = FAMILY.build(FAMILY.read_config(config)).embed.positions
    reference = DistilBertModel(DistilBertConfig(**config))
    torch.testing.assert_close(positions.weight, reference.embeddings.position_embeddings.weight)
    assert torch.equal(positions.weight, SinusoidalPositions(32)(torch.arange(40)))
    assert not positions.weight.requires_grad


def test_segment_ids_have_no_effect(tmp_path: Path) -> None:
    make_reference(tmp_path)
    model = load_model(tmp_path)
    with_segments = Ragged.make(60).packed
    without = Ragged.make(60, columns={}).packed
    assert torch.equal(model.backbone(with_segments).last, model.backbone(without).last)
