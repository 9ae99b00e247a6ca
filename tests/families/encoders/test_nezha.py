"""NEZHA, which `transformers` 5 no longer has, against the equations of the paper, and against BERT without positions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.functional_positions import FunctionalKeys, FunctionalPositions, FunctionalValues
from pretune.nn.attention.patterns import full, window
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.attention.scaled_dot_product import attend
from pretune.objectives import parse_objective
from pretune.packed import Capacity, Packed, pack, pack_lists
from tests.support.counted_flops import forward_flops
from tests.support.flop_batches import even_batch, small_backbone
from tests.support.parity import assert_same, close

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_relative_position": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LENGTHS = (7, 12, 1, 5)


def make(objective: str = "mlm+nsp", **changes: Any) -> Model:
    family = FAMILIES["nezha"]
    config = family.read_config(SMALL | changes)
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), objective=objective)
    model.add_heads(parse_objective(objective).objectives)
    for parameter in model.root.parameters():  # norms and biases too, so that no agreement is accidental
        torch.nn.init.normal_(parameter, std=0.2)
    model.root.eval()
    return model


def packed_of(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Packed:
    rng = np.random.default_rng(0)
    segments = rng.integers(0, 2, sum(lengths))
    return pack(rng.integers(5, 60, sum(lengths)), np.array(lengths), columns={"segment": segments}, **options)


def encodings(furthest: int, width: int) -> Tensor:
    """Return the vectors of the distances from −furthest to furthest: equation 4 of the paper, one value at a time."""
    rows = [
        [(math.sin if k % 2 == 0 else math.cos)(place / 10_000 ** (2 * (k // 2) / width)) for k in range(width)]
        for place in range(2 * furthest + 1)
    ]
    return torch.tensor(rows)


def attention_of_the_paper(x: Tensor, published: dict[str, Tensor], layer: str, heads: int, furthest: int) -> Tensor:
    """Return the attention of one sequence x, (L, width): equations 2 and 3 of the paper, one query at a time."""

    def project(part: str) -> Tensor:
        name = f"{layer}.attention.self.{part}"
        return F.linear(x, published[f"{name}.weight"], published[f"{name}.bias"]).view(len(x), heads, -1)

    q, k, v = (project(part) for part in ("query", "key", "value"))
    d = q.shape[-1]
    vectors = encodings(furthest, d)
    out = torch.zeros_like(q)
    for i in range(len(x)):
        a = torch.stack([vectors[max(-furthest, min(furthest, j - i)) + furthest] for j in range(len(x))])[:, None]
        weights = torch.einsum("hd,jhd->hj", q[i], (k + a) / d**0.5).softmax(-1)
        out[i] = torch.einsum("hj,jhd->hd", weights, v + a)
    return out.flatten(1)


def states_of_the_paper(ids: Tensor, segments: Tensor, published: dict[str, Tensor]) -> list[Tensor]:
    """Return the states of all layers of one sequence, from tensors with their published names."""

    def dense(x: Tensor, name: str) -> Tensor:
        return F.linear(x, published[f"{name}.weight"], published[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[1:], published[f"{name}.weight"], published[f"{name}.bias"], 1e-12)

    table = "nezha.embeddings"
    x = published[f"{table}.word_embeddings.weight"][ids] + published[f"{table}.token_type_embeddings.weight"][segments]
    states = [norm(x, f"{table}.LayerNorm")]
    for number in range(SMALL["num_hidden_layers"]):
        layer, x = f"nezha.encoder.layer.{number}", states[-1]
        mixed = attention_of_the_paper(
            x, published, layer, SMALL["num_attention_heads"], SMALL["max_relative_position"]
        )
        x = norm(x + dense(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = F.gelu(dense(x, f"{layer}.intermediate.dense"))
        states.append(norm(x + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"))
    return states


@pytest.mark.not_fast
@torch.no_grad()
def test_states_of_every_layer_follow_the_equations_of_the_paper(tmp_path: Path) -> None:
    model, packed = make(), packed_of()
    model.save(tmp_path)
    published = load_file(tmp_path / "model.safetensors")
    ours = model.backbone(packed, keep="all").layers
    parts = zip(packed.ids.split(LENGTHS), packed.columns["segment"].split(LENGTHS), strict=True)
    theirs = [states_of_the_paper(ids, segments, published) for ids, segments in parts]
    for number, layer in enumerate(ours):
        close(layer, torch.cat([states[number] for states in theirs]))


@torch.no_grad()
def test_packed_sequences_match_single_ones_and_filler_is_ignored() -> None:
    model, packed = make(), packed_of()
    together = model.backbone(packed).last
    alone = []
    for ids, segments in zip(packed.ids.split(LENGTHS), packed.columns["segment"].split(LENGTHS), strict=True):
        single = pack(ids.numpy(), np.array([len(ids)]), columns={"segment": segments.numpy()})
        alone.append(model.backbone(single).last)
    close(together, torch.cat(alone))
    filled = model.backbone(packed_of(capacity=Capacity(64, 12, 12), filler=9)).last
    close(together, filled[: len(together)])


@torch.no_grad()
def test_without_positions_it_is_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    model, packed = make(), packed_of()
    family = FAMILIES["bert"]
    bert = family.build(family.read_config({key: value for key, value in SMALL.items() if "relative" not in key}))
    tensors = model.backbone.state_dict()
    for number in range(SMALL["num_hidden_layers"]):
        for part in ("weight", "bias"):
            name = f"layers.{number}.attention.part"
            names = (f"{name}.query.{part}", f"{name}.key_value.{part}")
            tensors[f"{name}.qkv.{part}"] = torch.cat([tensors.pop(own) for own in names])
    tensors["embed.positions.weight"] = torch.zeros(512, SMALL["hidden_size"])
    bert.load_state_dict(tensors)
    expected = bert.eval()(packed).last
    assert not torch.allclose(model.backbone(packed).last, expected, atol=0.1)
    monkeypatch.setattr(
        FunctionalPositions,
        "vectors",
        lambda self, like: like.new_zeros(2 * self.max_distance + 1, self.encoding.width),
    )
    close(model.backbone(packed).last, expected)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    furthest=st.integers(1, 5),
    near=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_equals_a_mean_of_shifted_keys_and_values(
    lengths: list[int], furthest: int, near: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    heads, width, n = 2, 6, sum(lengths)
    layout = self_layout(pack_lists([[1] * length for length in lengths]))
    q, k, v = torch.randn(3, n, heads, width).unbind()
    keys, values = (kind(heads, width, furthest) for kind in (FunctionalKeys, FunctionalValues))
    pattern = window(2) if near else full
    ours = attend(q, k, v, layout, pattern, keys(q, layout), values=values)
    vectors, expected, start = encodings(furthest, width), [], 0
    for length in lengths:
        part, steps = slice(start, start + length), torch.arange(length)
        distance = steps - steps[:, None]
        a = vectors[distance.clamp(-furthest, furthest) + furthest]  # (queries, keys, width)
        logits = torch.einsum("ihd,ijhd->hij", q[part], k[part] + a[:, :, None]) * width**-0.5
        weights = logits.masked_fill((distance.abs() > 2) & near, float("-inf")).softmax(-1)
        expected.append(torch.einsum("hij,ijhd->ihd", weights, v[part] + a[:, :, None]))
        start += length
    close(ours, torch.cat(expected))


def test_checkpoints_of_both_prefixes_load_and_round_trip(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "a")
    again = load_model(tmp_path / "a", parse_objective("mlm+nsp"))
    assert_same(model.root, again.root)
    again.save(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("nezha", ["NezhaForPreTraining"])
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    assert {name.partition(".")[0] for name in tensors} == {"nezha", "cls"}
    old = {name.replace("nezha.", "bert."): tensor for name, tensor in tensors.items()}
    old["bert.encoder.layer.0.attention.self.relative_positions_encoding.positions_encoding"] = torch.zeros(40, 40, 8)
    (tmp_path / "old").mkdir()
    save_file(old, tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "config.json").write_text(json.dumps(config | {"use_relative_position": True}))
    assert_same(model.root, load_model(tmp_path / "old", parse_objective("mlm+nsp")).root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_relative_position": 0}, "max_relative_position is 0; it must be from 1"),
        ({"use_relative_position": False}, "use_relative_position false is not supported"),
    ],
)
def test_unsupported_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        FAMILIES["nezha"].read_config(SMALL | changes)


@pytest.mark.parametrize("shape", [(16, 3), (9, 2)])
def test_flops_are_those_of_the_counter(shape: tuple[int, int]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {key: value for key, value in SMALL.items() if "size" in key or "num" in key} | {"vocab_size": 300}
    root, mixture = Network(small_backbone("nezha", **sizes, max_relative_position=5)), parse_objective("mlm")
    root.heads["mlm"] = mixture.objectives[0].head(root.backbone)
    batch = even_batch(1, *shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        root(mixture.joints[0], batch)
    assert counter.get_total_flops() == forward_flops(root, batch)


def test_the_base_preset_has_the_parameters_of_bert_without_positions() -> None:
    with torch.device("meta"):
        backbone = make_model("nezha-base").backbone
    # 21,128 token and 2 segment vectors, a norm, and 12 layers of BERT-base
    assert sum(p.numel() for p in backbone.parameters()) == (21_128 + 2 + 2) * 768 + 12 * 7_087_872
