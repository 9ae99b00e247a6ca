"""Tests of the memory of training: the formulas equal what optimizers and autograd really keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.models.model import Network
from pretune.models.presets import preset_names
from pretune.nn.dropout import share_dropout_seed
from pretune.nn.saved_activations import SavedActivations
from pretune.objectives import parse_objective
from pretune.packed import Batch, Capacity, pack, pack_lists, pack_targets
from pretune.training.loop import compile_once
from pretune.training.memory import (
    FP32,
    SCALARS,
    estimate_activations,
    optimizer_state_bytes,
    preset_memory,
    saved_activations,
)
from pretune.training.optim.optimizers import make_optimizers
from pretune.training.recipe_sections import Batching, Optimizer, resolve_section


def network(preset: str, vocabulary: int = 256, objective: str = "mlm") -> Network:
    model = make_model(preset, vocabulary)
    model.add_heads(parse_objective(objective).objectives)
    return model.root


def settings(name: str, momentum: float | None = None) -> Optimizer:
    return resolve_section(Optimizer, Optimizer(name, lr=1e-3, momentum=momentum))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "momentum"), [*((name, None) for name in SCALARS), ("sgd", 0.9)], ids=lambda value: str(value)
)
def test_the_formula_equals_the_state_of_the_optimizer_after_a_step(name: str, momentum: float | None) -> None:
    root, given = network("bert-tiny"), settings(name, momentum)
    optimizers = make_optimizers(root, given)
    for parameter in root.parameters():
        parameter.grad = torch.randn_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) == optimizer_state_bytes(root, given)


def saved_bytes(backbone: Any, tokens: int, owner: Any = None) -> int:
    """Return the size of the activations that autograd saves in a forward pass over `tokens` tokens.

    `owner` has the parameters of the backbone if `backbone` is a function.
    """
    owner = backbone if owner is None else owner
    ids = np.random.default_rng(0).integers(5, 250, (4, tokens // 4)).tolist()
    own = {tensor.untyped_storage().data_ptr() for tensor in [*owner.parameters(), *owner.buffers()]}
    saved: dict[int, int] = {}
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    packed = pack_lists(ids)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = backbone(*[packed] * (2 if hasattr(backbone, "encoder") else 1))
    assert states.last.requires_grad
    return sum(saved.values())


@pytest.mark.parametrize(
    "preset",
    ["bert-tiny", "albert-tiny", "ernie-tiny", "gpt2-tiny", "transformer-tiny", "longformer-tiny", "bigbird-tiny"],
)
def test_activations_per_token_are_close_to_what_autograd_saves(preset: str) -> None:
    backbone: Any = make_model(preset, 256).root.train().backbone
    measured = (saved_bytes(backbone, 192) - saved_bytes(backbone, 64)) / (128 * FP32)
    saved = saved_activations(backbone)
    parts = [saved] if saved.source is None else [saved.source, saved]
    assert sum(part.total for part in parts) == pytest.approx(measured, rel=0.1)


def test_activations_of_two_streams_are_close_to_what_autograd_saves() -> None:
    backbone: Any = make_model("vilbert-tiny", 256, regions=(64, None)).root.train().backbone
    saved = saved_activations(backbone)
    assert saved.source is not None and not saved.unknown

    def measured(tokens: int, regions: int) -> int:
        columns = {"features": np.ones((regions, 64), np.float32), "locations": np.ones((regions, 5), np.float32)}
        image = pack(np.zeros(regions, dtype=int), np.full(4, regions // 4), columns=columns)
        return saved_bytes(lambda text: backbone(text, image), tokens, backbone)

    for per_token, more in ((saved.total, measured(192, 64)), (saved.source.total, measured(64, 192))):
        assert per_token == pytest.approx((more - measured(64, 64)) / (128 * FP32), rel=0.1)


def test_gradient_checkpointing_keeps_less_and_the_estimate_grows_with_the_microbatch() -> None:
    root, joint = network("bert-mini"), parse_objective("mlm").joints[0]
    batch = Batching(tokens=4096, max_length=128)

    def layers(changed: Batching) -> int:
        kept = estimate_activations(root, joint, changed)
        assert kept is not None
        return kept.layers

    assert layers(replace(batch, tokens=8192)) == 2 * layers(batch)
    assert layers(replace(batch, tokens=8192, microbatch_tokens=4096)) == layers(batch)
    assert layers(replace(batch, gradient_checkpointing=True)) < 0.5 * layers(batch)


def test_adam_triples_the_weights_and_adafactor_hardly_adds_to_them() -> None:
    facts = pt.show("bert-tiny", memory=True).facts
    ratios = {row["optimizer"]: row["state_ratio"] for row in facts["memory"]}
    assert ratios["adam"] == ratios["adamw"] == ratios["lamb"] == pytest.approx(3, abs=0.01)
    assert 1 < ratios["adafactor"] < 1.05 and ratios["sgd"] == 1 and 2 < ratios["muon"] < 3
    for row in facts["memory"]:
        parts = ("parameters", "gradients", "state", "activations")
        assert row["total"] == pytest.approx(sum(row[part] for part in parts), abs=0.3)
    assert facts["microbatch_tokens"] == 4096


@pytest.mark.parametrize(
    "preset",
    ["lstm-lm-tiny", "reformer-tiny", "performer-tiny", "xlnet-tiny", "deberta-tiny", "nezha-tiny", "funnel-tiny"],
)
def test_layers_that_do_not_report_what_they_keep_are_not_estimated(preset: str) -> None:
    assert preset_memory(preset)["memory"][0]["activations"] is None


class Double(nn.Module):
    """A layer of another package, which keeps its input twice."""

    def add_saved_activations(self, saved: SavedActivations) -> None:
        saved.width += 2 * saved.hidden


def test_a_new_layer_reports_what_it_keeps() -> None:
    backbone: Any = make_model("bert-tiny", 256).root.backbone
    before = saved_activations(backbone).total
    backbone.norm = nn.Sequential(backbone.norm, Double())
    assert saved_activations(backbone).total == before + 2 * backbone.width
    backbone.norm = nn.Sequential(backbone.norm, nn.Tanh())
    assert saved_activations(backbone).unknown == ["Tanh"]


def test_the_activations_of_a_generator_are_estimated_too() -> None:
    assert preset_memory("electra-tiny")["layers"] > preset_memory("bert-tiny")["layers"]  # its generator too


@pytest.mark.not_fast
def test_every_tiny_preset_has_a_memory_table() -> None:
    for name in filter(lambda name: name.endswith("-tiny"), preset_names()):
        assert len(preset_memory(name)["memory"]) == len(SCALARS), name


def test_memory_is_shown_of_presets_only() -> None:
    with pytest.raises(PretuneError, match="--memory applies only to a preset"):
        pt.show("plm", memory=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adamw", "lamb", "adafactor"])
def test_the_total_is_within_a_quarter_of_the_peak_on_a_gpu(name: str) -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    device, tokens, vocabulary, length = torch.device("cuda"), 16_384, 8192, 128
    before = torch.cuda.memory_allocated()
    root, joint, given = network("bert-small", vocabulary).train(), parse_objective("mlm").joints[0], settings(name)
    kept = estimate_activations(root, joint, Batching(tokens=tokens, max_length=length))
    assert kept is not None
    parameters = FP32 * sum(p.numel() for p in root.parameters())
    estimate = 2 * parameters + optimizer_state_bytes(root, given) + kept.total
    chance = np.random.default_rng(0)
    at = np.sort(chance.permutation(tokens)[: int(0.15 * tokens)])
    lengths, ids = np.full(tokens // length, length), chance.integers(5, vocabulary, tokens)
    room = Capacity(tokens, len(lengths), length)
    packed = pack(ids, lengths, columns={"segment": np.zeros(tokens, dtype=np.int64)}, capacity=room)
    counts = {"mlm": float(len(at)), "tokens": float(tokens)}
    batch = Batch((packed,), {"mlm": pack_targets(at, ids[at])}, counts).to(device)
    root.to(device)
    root.set_activation_dtype(torch.bfloat16)
    share_dropout_seed(root, device)
    optimizers = make_optimizers(root, given)
    compile_once(root)
    for _ in range(3):  # the first step compiles and creates the state
        torch.cuda.reset_peak_memory_stats()
        root(joint, batch).over(batch.counts).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() - before
    assert estimate == pytest.approx(peak, rel=0.25)
