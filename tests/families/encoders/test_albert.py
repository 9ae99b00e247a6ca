"""ALBERT against `transformers`, and its shared layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Network
from pretune.nn.dropout import share_dropout_seed
from pretune.objectives import parse_objective
from pretune.objectives.pretraining.sentence_pairs import SequenceClassificationHead
from pretune.packed import Batch
from pretune.training.optim.optimizers import hidden_matrices
from tests.support.counted_flops import forward_flops
from tests.support.family_configs import ALBERT
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_mlm,
    save_reference,
)

FAMILY = FAMILIES["albert"]
VARIANTS: dict[str, dict[str, Any]] = {
    "second release": {},
    "first release": {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
    "two groups of two layers": {"num_hidden_groups": 2, "inner_group_num": 2},
}


def make_reference(kind: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = transformers.AlbertConfig(**(ALBERT | changes))
    return save_reference(getattr(transformers, f"AlbertFor{kind}"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_match_transformers(variant: str, tmp_path: Path) -> None:
    """The gradient of a shared layer is the sum over its depths."""
    changes = VARIANTS[variant]
    reference = make_reference("MaskedLM", tmp_path, **changes)
    compare_mlm(reference, tmp_path, Ragged.make(60), every=changes.get("inner_group_num", 1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference("MaskedLM", tmp_path / "reference", **VARIANTS[variant])
    compare_export(reference, tmp_path / "reference", tmp_path, Ragged.make(60), AutoModelForMaskedLM)


def test_the_sentence_order_head_round_trips_through_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForPreTraining

    reference = make_reference("PreTraining", tmp_path / "reference")
    model = load_model(tmp_path / "reference", parse_objective("mlm"))
    model.root.heads["sop"] = SequenceClassificationHead(model.backbone)
    found, missing, extra = FAMILY.table.read(
        load_file(tmp_path / "reference" / "model.safetensors"), model.root.tensors()
    )
    assert not missing
    assert not extra
    model.root.load_state_dict(found)
    batch = Ragged.make(60)
    theirs = reference(**batch.inputs)
    last = model.backbone(batch.packed).last
    close(model.root.heads["sop"](last[batch.starts]), theirs.sop_logits)
    close(model.root.heads["mlm"](last, model.backbone.embed.tokens), batch.flat(theirs.prediction_logits))
    model.save(tmp_path / "out")
    again, report = AutoModelForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    close(again.eval()(**batch.inputs).sop_logits, theirs.sop_logits, 1e-6)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, ALBERT, tmp_path, Ragged.make(60))


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    make_reference("PreTraining", tmp_path / "reference").albert.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "reference").root, load_model(tmp_path / "bare").root)


def test_shared_layers_are_one_group_and_run_at_every_depth() -> None:
    one = FAMILY.build(FAMILY.read_config(ALBERT))
    assert [name for name, _ in one.groups()] == ["embed", "layer 0"]
    assert len(one.stack) == 5
    assert len(one(Ragged.make(60).packed, keep="all").layers) == 6
    two = FAMILY.build(FAMILY.read_config(ALBERT | {"num_hidden_groups": 2}))
    assert [name for name, _ in two.groups()] == ["embed", "layer 0", "layer 1"]
    assert list(two.order) == [0, 0, 0, 1, 1]
    grouped = {id(p) for _, modules in two.groups() for m in modules for p in m.parameters()}
    assert grouped == {id(p) for p in two.parameters()}
    assert len(hidden_matrices(Network(two))) == 8
    with pytest.raises(PretuneError, match=r"num_hidden_groups \(6\) must not exceed num_hidden_layers \(5\)"):
        FAMILY.build(FAMILY.read_config(ALBERT | {"num_hidden_groups": 6}))


@pytest.mark.parametrize("changes", [{}, {"num_hidden_groups": 2, "inner_group_num": 2}])
def test_shared_parameters_are_counted_once_and_their_flops_at_every_depth(changes: dict[str, Any]) -> None:
    shallow, deep = (FAMILY.build(FAMILY.read_config(ALBERT | {"num_hidden_layers": n} | changes)) for n in (2, 5))
    assert sum(p.numel() for p in shallow.parameters()) == sum(p.numel() for p in deep.parameters())
    packed = Ragged.make(60, (6, 6, 6)).packed  # equal lengths, so that the dense path has no padding
    batch = Batch((packed,), counts={"tokens": float(len(packed))}, rows=np.arange(3))
    for backbone in (shallow, deep):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            backbone(packed)
        assert counter.get_total_flops() == forward_flops(Network(backbone), batch)


def test_dropout_masks_differ_at_every_depth() -> None:
    changes = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.5}
    model = FAMILY.build(FAMILY.read_config(ALBERT | changes))
    share_dropout_seed(model, torch.device("cpu")).fill_(3)
    dropout = model.layers[0][0].attention.dropout
    seen: list[torch.Tensor] = []
    dropout.register_forward_hook(lambda module, inputs, out: seen.append(out == 0))
    packed = Ragged.make(60).packed
    model(packed)
    assert abs(float((seen[0] == seen[1]).float().mean()) - 0.5) < 0.1
    first = seen[:]
    model(packed)
    assert torch.equal(first[0], seen[2]) and torch.equal(first[1], seen[3])
