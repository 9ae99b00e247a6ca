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
from tests.support.parity import Ragged, assert_same, close, compare_classifier, compare_export, compare_mlm, save_peer

FAMILY = FAMILIES["albert"]
SMALL = {
    "vocab_size": 60, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "second release": {},
    "first release": {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
    "two groups of two layers": {"num_hidden_groups": 2, "inner_group_num": 2},
}


def make_peer(kind: str, folder: Path, **changes: Any) -> Any:
    import transformers

    config = transformers.AlbertConfig(**(SMALL | changes))
    return save_peer(getattr(transformers, f"AlbertFor{kind}"), config, folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_loss_and_gradients_are_the_peers(variant: str, tmp_path: Path) -> None:
    """A layer's gradient is the sum over the depths that share it."""
    changes = VARIANTS[variant]
    peer = make_peer("MaskedLM", tmp_path, **changes)
    compare_mlm(peer, tmp_path, Ragged.make(60), every=changes.get("inner_group_num", 1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_export_is_loaded_by_the_peer_and_export_import_export_is_stable(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    peer = make_peer("MaskedLM", tmp_path / "peer", **VARIANTS[variant])
    compare_export(peer, tmp_path / "peer", tmp_path, Ragged.make(60), AutoModelForMaskedLM)


def test_the_head_for_the_order_of_sentences_goes_both_ways(tmp_path: Path) -> None:
    from transformers import AutoModelForPreTraining

    peer = make_peer("PreTraining", tmp_path / "peer")
    model = load_model(tmp_path / "peer", parse_objective("mlm"))
    model.root.heads["sop"] = SequenceClassificationHead(model.backbone)
    found, missing, extra = FAMILY.table.read(load_file(tmp_path / "peer" / "model.safetensors"), model.root.tensors())
    assert not missing
    assert not extra
    model.root.load_state_dict(found)
    batch = Ragged.make(60)
    theirs = peer(**batch.inputs)
    last = model.backbone(batch.packed).last
    close(model.root.heads["sop"](last[batch.starts]), theirs.sop_logits)
    close(model.root.heads["mlm"](last, model.backbone.embed.tokens), batch.flat(theirs.prediction_logits))
    model.save(tmp_path / "out")
    again, report = AutoModelForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    close(again.eval()(**batch.inputs).sop_logits, theirs.sop_logits, 1e-6)


def test_a_classifier_goes_both_ways(tmp_path: Path) -> None:
    compare_classifier(FAMILY, SMALL, tmp_path, Ragged.make(60))


def test_a_bare_model_loads(tmp_path: Path) -> None:
    make_peer("PreTraining", tmp_path / "peer").albert.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "peer").root, load_model(tmp_path / "bare").root)


def test_shared_layers_are_one_group_and_run_at_every_depth() -> None:
    one = FAMILY.build(FAMILY.read_config(SMALL))
    assert [name for name, _ in one.groups()] == ["embed", "layer 0"]
    assert len(one.stack) == 5
    assert len(one(Ragged.make(60).packed, keep="all").layers) == 6
    two = FAMILY.build(FAMILY.read_config(SMALL | {"num_hidden_groups": 2}))
    assert [name for name, _ in two.groups()] == ["embed", "layer 0", "layer 1"]
    assert list(two.order) == [0, 0, 0, 1, 1]
    grouped = {id(p) for _, modules in two.groups() for m in modules for p in m.parameters()}
    assert grouped == {id(p) for p in two.parameters()}
    assert len(hidden_matrices(Network(two))) == 8
    with pytest.raises(PretuneError, match=r"num_hidden_groups \(6\) must not exceed num_hidden_layers \(5\)"):
        FAMILY.build(FAMILY.read_config(SMALL | {"num_hidden_groups": 6}))


@pytest.mark.parametrize("changes", [{}, {"num_hidden_groups": 2, "inner_group_num": 2}])
def test_what_is_shared_is_counted_once_and_computed_at_every_depth(changes: dict[str, Any]) -> None:
    shallow, deep = (FAMILY.build(FAMILY.read_config(SMALL | {"num_hidden_layers": n} | changes)) for n in (2, 5))
    assert sum(p.numel() for p in shallow.parameters()) == sum(p.numel() for p in deep.parameters())
    packed = Ragged.make(60, (6, 6, 6)).packed  # of one length, so that the dense path pads nothing
    batch = Batch((packed,), counts={"tokens": float(len(packed))}, rows=np.arange(3))
    for backbone in (shallow, deep):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            backbone(packed)
        assert counter.get_total_flops() == forward_flops(Network(backbone), batch)


def test_every_depth_drops_other_elements() -> None:
    changes = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.5}
    model = FAMILY.build(FAMILY.read_config(SMALL | changes))
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
