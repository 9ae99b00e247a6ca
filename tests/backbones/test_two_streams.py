"""The two-stream backbone: packing, texts without images, the order of layers, and gradient checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pretune.backbones.two_streams import TwoStreams, unknown_images
from pretune.families import FAMILIES
from pretune.nn.blocks import TransformerLayer
from pretune.packed import Capacity, Packed, pack
from tests.support.drawn_shapes import SMALL

TEXTS, IMAGES = (4, 1, 7), (2, 5, 1)


def make(**changes: Any) -> TwoStreams:
    family = FAMILIES["vilbert"]
    torch.manual_seed(0)
    backbone: TwoStreams = family.build(family.read_config(SMALL | changes))  # type: ignore[assignment]
    return backbone.eval()


def inputs(rows: list[int], capacity: Capacity | None = None) -> tuple[Packed, Packed]:
    """Return the texts and images with the given indices."""
    rng = np.random.default_rng(0)
    ids = np.split(rng.integers(5, 64, sum(TEXTS)), np.cumsum(TEXTS)[:-1])
    features = np.split(rng.normal(size=(sum(IMAGES), 19)).astype(np.float32), np.cumsum(IMAGES)[:-1])
    where = np.split(rng.uniform(size=(sum(IMAGES), 5)).astype(np.float32), np.cumsum(IMAGES)[:-1])
    text = pack(np.concatenate([ids[i] for i in rows]), np.array([TEXTS[i] for i in rows]), capacity=capacity)
    lengths = np.array([IMAGES[i] for i in rows])
    columns = {name: np.concatenate([x[i] for i in rows]) for name, x in (("features", features), ("locations", where))}
    return text, pack(np.zeros(lengths.sum(), dtype=int), lengths, columns=columns, capacity=capacity)


@torch.no_grad()
def test_packed_pairs_match_single_ones_and_padding_is_ignored() -> None:
    backbone = make()
    together, filled = backbone(*inputs([0, 1, 2])), backbone(*inputs([0, 1, 2], Capacity(20, 9, 8)))
    alone = [backbone(*inputs([row])) for row in range(3)]
    text, regions = torch.cat([one.last for one in alone]), torch.cat([one.regions for one in alone])
    for states in (together, filled):
        torch.testing.assert_close(states.last[: len(text)], text, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states.regions[: len(regions)], regions, atol=1e-5, rtol=1e-5)


def test_each_stream_reads_the_other_one_of_the_same_pair_only() -> None:
    backbone = make()
    text, regions = inputs([0, 1, 2])
    features = regions.columns["features"].requires_grad_()
    states = backbone(text, regions)
    torch.autograd.backward(states.last[4].square().sum())  # the second text, a single token
    assert features.grad is not None
    assert features.grad.abs().sum(1).nonzero().flatten().tolist() == [2, 3, 4, 5, 6]
    backbone.zero_grad()
    torch.autograd.backward(backbone(text, regions).regions[0].square().sum())
    assert backbone.embed.tokens.grad is not None
    assert set(backbone.embed.tokens.grad.abs().sum(1).nonzero().flatten().tolist()) == set(text.ids[:4].tolist())


@torch.no_grad()
def test_a_text_without_an_image_has_an_image_of_which_nothing_is_known() -> None:
    backbone = make()
    text, _ = inputs([0, 1, 2])
    image = unknown_images(text, backbone.embed_regions)
    assert len(image) == 3 and image.max_length == 1 and not image.columns["features"].any()
    torch.testing.assert_close(backbone(text).last, backbone(text, image).last)


def test_layers_run_in_the_published_order_and_every_parameter_is_in_one_group() -> None:
    backbone = make(num_hidden_layers=4, v_num_hidden_layers=3, t_biattention_id=[2, 3], v_biattention_id=[0, 2])
    text, regions, bridge = "text", "regions", "bridge"
    assert backbone.schedule() == [
        (text, 0), (text, 1), (bridge, 0), (text, 2), (regions, 0), (regions, 1), (bridge, 1), (text, 3), (regions, 2),
    ]  # fmt: skip
    assert backbone.depth == 4 and [name for name, _ in backbone.groups()] == [
        "embed",
        *(f"layer {i}" for i in range(4)),
    ]
    grouped = [id(p) for _, modules in backbone.groups() for module in modules for p in module.parameters()]
    assert sorted(grouped) == sorted(map(id, backbone.parameters()))
    states = backbone(*inputs([0, 1, 2]), keep="all")
    assert len(states.layers) == 5 and torch.equal(states.layers[-1], backbone(*inputs([0, 1, 2])).last)


@pytest.mark.not_fast
def test_gradient_checkpointing_changes_no_gradient() -> None:
    gradients: list[list[torch.Tensor | None]] = []
    for recompute in (False, True):
        backbone = make(hidden_dropout_prob=0.2, v_hidden_dropout_prob=0.2).train()
        for module in backbone.modules():
            if isinstance(module, TransformerLayer):
                module.recompute = recompute
        states = backbone(*inputs([0, 1, 2]))
        torch.autograd.backward(states.last.square().sum() + states.regions.square().sum())
        gradients.append([p.grad for p in backbone.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
