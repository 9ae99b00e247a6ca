"""Tests that the FLOP formulas of chunked, hashed and random-feature attention equal the FLOP counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pretune.models.model import Network
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import Batch
from tests.support.counted_flops import forward_flops, itemize_flops, training_flops
from tests.support.flop_batches import even_batch, small_backbone

REFORMER = {
    "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 40,
    "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 8, "num_hashes": 3, "num_buckets": [4, 2],
    "max_position_embeddings": 96, "axial_pos_shape": [4, 24], "axial_pos_embds_dim": [12, 20], "is_decoder": True,
}  # fmt: skip
PERFORMER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "num_random_features": 24,
}  # fmt: skip


def make_case(family: str, objective: str, length: int, rows: int, **sizes: Any) -> tuple[Network, Any, Batch]:
    root, mixture = Network(small_backbone(family, **sizes)), parse_objective(objective)
    root.heads[objective] = mixture.objectives[0].head(root.backbone)
    batch = even_batch(1, length, rows)
    batch.targets, batch.counts = {objective: batch.targets["mlm"]}, {objective: batch.counts["mlm"], "tokens": 1.0}
    return root, mixture.joints[0], batch


@pytest.mark.parametrize("kinds", [["local", "lsh", "local"], ["lsh"], ["local"]])
@pytest.mark.parametrize("shape", [(16, 3), (48, 1), (32, 2)])
def test_reformer(kinds: list[str], shape: tuple[int, int]) -> None:
    root, joint, batch = make_case("reformer", "lm", *shape, **REFORMER, attn_layers=kinds)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        root(joint, batch)
    assert counter.get_total_flops() == forward_flops(root, batch)


@pytest.mark.parametrize("objective", ["mlm", "lm"])
@pytest.mark.parametrize("shape", [(64, 3), (128, 2)])
def test_performer(objective: str, shape: tuple[int, int]) -> None:
    root, joint, batch = make_case("performer", objective, *shape, **PERFORMER)
    if objective == "lm":
        for layer in root.backbone.layers:
            layer.attention.part.pattern = causal
    with FlopCounterMode(display=False) as counter:
        root(joint, batch)
    assert counter.get_total_flops() == forward_flops(root, batch)
    with FlopCounterMode(display=False) as counter:
        root(joint, batch).over(batch.counts).backward()
    # Random features have no gradient; the formula still counts it, as is customary.
    features = 2 * PERFORMER["hidden_size"] * 4 * PERFORMER["num_random_features"] * shape[0] * shape[1]
    assert counter.get_total_flops() == training_flops(root, batch) - features


@pytest.mark.parametrize(("family", "sizes"), [("reformer", REFORMER), ("performer", PERFORMER)])
def test_attention_flops_grow_linearly_with_length(family: str, sizes: dict[str, Any]) -> None:
    root = Network(small_backbone(family, **sizes))
    short, long = (itemize_flops(root, even_batch(1, length, 1))["attention"] for length in (64, 640))
    assert long == 10 * short
    ragged = even_batch(1, 640, 1)
    ragged.lengths = (np.array([600, 40]),)
    assert itemize_flops(root, ragged)["attention"] == long
