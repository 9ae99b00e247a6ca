"""Transformer-XL: `transformers` has removed it, so outputs recorded from its last version are compared, and properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack
from tests.support.parity import assert_same

SMALL: dict[str, Any] = {
    "vocab_size": 60, "cutoffs": [20, 40], "d_model": 32, "d_embed": 32, "n_head": 2, "d_head": 16, "d_inner": 48,
    "div_val": 2, "n_layer": 2, "mem_len": 6, "clamp_len": 5, "same_length": True, "dropout": 0.0,
}  # fmt: skip
IDS = (np.arange(24) * 37 % 60).reshape(2, 12)
# Recorded from `transformers` 4.57.1, with parameters as below and ids in three segments of four tokens: log p of every seventh
# token after the last token of the second row, and component 6 of the last layer's memory of that row.
FOUND = [
    (
        {},
        [-3.28703, -3.80512, -4.57089, -5.85093, -6.68969, -5.19133, -8.63841, -6.63126, -7.2437],
        [0.32108, 0.35187, 0.42858, 0.3625, 0.43498, 0.32003],
    ),
    (
        {"same_length": False, "cutoffs": [], "clamp_len": -1},
        [-4.89442, -4.90392, -4.41817, -3.76118, -3.54743, -3.7174, -3.66606, -3.25276, -3.04748],
        [-0.11978, -0.13039, -0.12992, -0.14385, -0.14331, -0.14277],
    ),
]


def make(objective: str = "lm", **changes: Any) -> Model:
    """Set all parameters to sine waves, in the order of their published names."""
    family = FAMILIES["transfo-xl"]
    config = family.read_config(SMALL | changes)
    model = Model(family, config, Network(family.build(config)), objective=objective)
    model.labels = ["a", "b"] if "classify" in objective else []
    model.add_heads(parse_objective(objective, labels=("a", "b"), pooling="last").objectives)
    published, rest = family.table.write(model.root.tensors())
    assert not rest
    waves = {
        name: torch.sin(torch.arange(published[name].numel()) * 0.7 + number).view_as(published[name]) * 0.3
        for number, name in enumerate(sorted(published))
    }
    found, missing, extra = family.table.read(waves, model.root.tensors())
    assert not missing and not extra
    model.root.load_state_dict(found, strict=False)
    model.root.eval().requires_grad_(False)
    return model


def segment(ids: np.ndarray, start: int = 0) -> Packed:  # type: ignore[type-arg]
    rows, length = ids.shape
    columns = {"document_start": np.zeros(ids.size, dtype=bool)}
    positions = np.tile(np.arange(length) + start, rows)
    return pack(ids.ravel(), np.full(rows, length), positions=positions, columns=columns, pattern=causal)


@pytest.mark.parametrize(("changes", "expected", "memory"), FOUND)
def test_outputs_match_recorded_outputs_of_transformers(
    changes: dict[str, Any], expected: list[float], memory: list[float]
) -> None:
    model = make(**changes)
    carry = None
    for start in (0, 4, 8):
        states = model.backbone(segment(IDS[:, start : start + 4]), state=carry)
        carry = states.state
    logits = model.root.heads["lm"](states.last, model.backbone.embed.tokens)
    torch.testing.assert_close(logits[-1, ::7], torch.tensor(expected), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(carry.states[1][1, :, 5], torch.tensor(memory), atol=2e-5, rtol=1e-5)


def test_segments_with_memory_match_one_long_text() -> None:
    model = make(mem_len=12, clamp_len=-1)
    whole = model.backbone(segment(IDS)).last.view(2, 12, -1)
    carry = None
    for start in range(0, 12, 3):
        states = model.backbone(segment(IDS[:, start : start + 3]), state=carry)
        torch.testing.assert_close(states.last.view(2, 3, -1), whole[:, start : start + 3], atol=1e-5, rtol=1e-5)
        carry = states.state


def test_outputs_do_not_depend_on_absolute_positions() -> None:
    model = make()
    first, later = (model.backbone(segment(IDS, start)).last for start in (0, 5000))
    torch.testing.assert_close(first, later, atol=1e-5, rtol=1e-5)


def test_every_token_attends_to_the_same_number_of_tokens() -> None:
    """With `same_length`, each layer extends the receptive field by six tokens."""
    torch.manual_seed(0)
    stack = FAMILIES["transfo-xl"].build(FAMILIES["transfo-xl"].read_config(SMALL)).eval()
    other = IDS.copy()
    other[:, 0] = (other[:, 0] + 1) % 60
    differs = [
        ((a - b).abs().view(2, 12, -1).amax((0, 2)) > 0).tolist()
        for a, b in zip(*(stack(segment(ids), keep="all").layers for ids in (IDS, other)), strict=True)
    ]
    assert differs == [[place <= reach for place in range(12)] for reach in (0, 5, 10)]


def test_incremental_decoding_with_a_cache_matches_one_pass() -> None:
    model = make()
    whole = model.backbone(pack(IDS.ravel(), np.array([12, 12]))).last.view(2, 12, -1)
    cache = KVCache(sequences=2, slots=12)
    for place in range(12):
        packed = pack(IDS[:, place], np.array([1, 1]), positions=np.array([place, place]))
        torch.testing.assert_close(model.backbone(packed, state=cache).last, whole[:, place], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("objective", ["lm", "classify", "classify+0.5*lm"])
def test_checkpoints_round_trip(objective: str, tmp_path: Path) -> None:
    model = make(objective)
    model.save(tmp_path / "a")
    mixture = parse_objective(objective, labels=("a", "b"), pooling="last")
    again = load_model(tmp_path / "a", mixture)
    again.save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert_same(model.root, again.root)
    assert not (tmp_path / "a" / "head.safetensors").exists()
    # Tensors that `transformers` saved in addition are redundant.
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    tensors["crit.out_layers.1.weight"] = tensors["transformer.word_emb.emb_layers.1.weight"].clone()
    tensors["crit.out_projs.1"] = tensors["transformer.word_emb.emb_projs.1"].clone()
    tensors["transformer.pos_emb.inv_freq"] = torch.zeros(16)
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    assert_same(model.root, load_model(tmp_path / "a", mixture).root)
    names = {name for name in tensors if "layers.1." in name and name.startswith("transformer.layers")}
    assert names == {
        f"transformer.layers.1.{name}"
        for name in (
            "dec_attn.qkv_net.weight", "dec_attn.o_net.weight", "dec_attn.r_net.weight", "dec_attn.r_w_bias",
            "dec_attn.r_r_bias", "dec_attn.layer_norm.weight", "dec_attn.layer_norm.bias", "pos_ff.CoreNet.0.weight",
            "pos_ff.CoreNet.0.bias", "pos_ff.CoreNet.3.weight", "pos_ff.CoreNet.3.bias", "pos_ff.layer_norm.weight",
            "pos_ff.layer_norm.bias",
        )
    }  # fmt: skip
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model_type"] == "transfo-xl"


def test_parameter_count_matches_the_release() -> None:
    """The count of `transfo-xl-wt103` as a `TransfoXLLMHeadModel`, tied parameters once, computed from its configuration."""
    with torch.device("meta"):
        model = make_model("transfo-xl-wt103")
        model.add_heads(parse_objective("lm").objectives)
    width, inner, sizes, widths = 1024, 4096, (20000, 20000, 160000, 67735), (1024, 256, 64, 16)
    layer = 5 * width * width + 2 * width + 2 * inner * width + inner + width + 4 * width
    embedding = sum(size * wide + width * wide for size, wide in zip(sizes, widths, strict=True))
    head = width * width + sum(sizes) + 3 * width + 3
    assert 18 * layer + embedding + head == 285_205_322
    assert sum(p.numel() for p in model.root.parameters()) == 285_205_322


@pytest.mark.parametrize("changes", [{"pre_lnorm": True}, {"untie_r": False}, {"div_val": 1}])
def test_unsupported_configurations_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PretuneError, match="is not supported"):
        make(**changes)
