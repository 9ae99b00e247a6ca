"""Generators and discriminators of ELECTRA against `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.nn.linear import Linear
from pretune.objectives import parse_objective
from tests.support.family_configs import ELECTRA
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_gradients,
    compare_mlm,
    compare_states,
    save_reference,
)

FAMILY = FAMILIES["electra"]
VARIANTS: dict[str, dict[str, Any]] = {
    "narrow vectors": {},
    "vectors as wide as states": {"embedding_size": 32},
    "relu": {"hidden_act": "relu", "layer_norm_eps": 1e-3},
}


def make_reference(kind: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = transformers.ElectraConfig(**(ELECTRA | changes))
    return save_reference(getattr(transformers, f"ElectraFor{kind}"), config, folder)


def load_discriminator(folder: Path) -> Model:
    """A discriminator with its head: a dense layer, GELU, and one logit per token."""
    head = nn.ModuleDict({"dense": Linear(32, 32), "output": Linear(32, 1)})
    model = load_model(folder)
    model.root.heads["rtd"] = head
    found, missing, extra = FAMILY.table.read(load_file(folder / "model.safetensors"), model.root.tensors())
    assert not missing
    assert not extra
    model.root.load_state_dict(found)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_generator_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    compare_mlm(make_reference("MaskedLM", tmp_path, **VARIANTS[variant]), tmp_path, Ragged.make(60))


@pytest.mark.parametrize("variant", ["narrow vectors", "vectors as wide as states"])
def test_discriminator_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_reference("PreTraining", tmp_path, **VARIANTS[variant])
    model = load_discriminator(tmp_path)
    batch = Ragged.make(60)
    theirs = reference(**batch.inputs, output_hidden_states=True)
    states = compare_states(model, theirs.hidden_states, batch)
    head: Any = model.root.heads["rtd"]
    logits = head["output"](F.gelu(head["dense"](states)))[:, 0]
    close(logits, batch.flat(theirs.logits))
    target, labels = batch.targets(2)
    expected = reference(**batch.inputs, labels=labels.clamp(min=0)).loss
    loss = F.binary_cross_entropy_with_logits(logits, target.float())
    close(loss, expected)
    expected.backward()
    loss.backward()
    compare_gradients(model, reference)

    model.save(tmp_path / "out")
    from transformers import AutoModelForPreTraining

    again, report = AutoModelForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    close(again.eval()(**batch.inputs).logits, theirs.logits, 1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference("MaskedLM", tmp_path / "reference", **VARIANTS[variant])
    compare_export(reference, tmp_path / "reference", tmp_path, Ragged.make(60), AutoModelForMaskedLM)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, ELECTRA, tmp_path, Ragged.make(60))


def test_a_discriminator_can_be_fine_tuned_and_a_model_without_heads_loads(tmp_path: Path) -> None:
    reference = make_reference("PreTraining", tmp_path / "reference")
    whole = load_model(tmp_path / "reference", parse_objective("classify", labels=("bad", "good")))
    del whole.root.heads["classify"]
    reference.electra.save_pretrained(tmp_path / "bare")
    assert_same(whole.root, load_model(tmp_path / "bare").root)


def test_heads_of_other_tasks_are_accepted(tmp_path: Path) -> None:
    make_reference("PreTraining", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"classifier.weight": torch.zeros(9, 32), "qa_outputs.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path)
