"""Reversible layers invert, and their gradients are those of plain backpropagation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretune.families import FAMILIES
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.dropout import share_dropout_seed
from pretune.nn.reversible import run_reversible
from pretune.packed import Packed, pack_lists

SMALL = {
    "vocab_size": 30, "hidden_size": 12, "num_attention_heads": 2, "attention_head_size": 6, "feed_forward_size": 20,
    "attn_layers": ["local", "lsh", "local", "lsh"], "local_attn_chunk_length": 2, "lsh_attn_chunk_length": 4,
    "num_buckets": 4, "num_hashes": 2, "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [4, 8],
    "max_position_embeddings": 32, "is_decoder": True, "initializer_range": 0.3, "hidden_dropout_prob": 0.0,
}  # fmt: skip
TEXTS = [list(range(5, 20)), [7, 8, 9], list(range(20, 29))]


def stack(**changes: Any) -> Any:
    torch.manual_seed(0)
    return FAMILIES["reformer"].build(FAMILIES["reformer"].read_config(SMALL | changes))


def contexts(network: Any, packed: Packed) -> list[AttentionContext]:
    context = AttentionContext(self_layout(packed))
    return [replace(context, depth=depth) for depth in range(len(network.layers))]


def run_plain(network: Any, contexts: list[AttentionContext], x: Tensor) -> list[Tensor]:
    """Return the streams of every layer, with all activations kept for the backward pass."""
    first = second = x
    states = []
    for layer, context in zip(network.layers, contexts, strict=True):
        first, second = layer(first, second, context, torch.float32)
        states.append(torch.cat([first, second], 1))
    return states


def test_a_layer_inverts() -> None:
    network, packed = stack(), pack_lists(TEXTS)
    first, second = torch.randn(27, 12), torch.randn(27, 12)
    for layer, context in zip(network.layers, contexts(network, packed), strict=True):
        there = layer(first, second, context, torch.float32)
        back = layer.invert(*there, context, torch.float32)
        torch.testing.assert_close(back[0], first, atol=1e-6, rtol=0)
        torch.testing.assert_close(back[1], second, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({}, {4}), ({"hidden_dropout_prob": 0.3}, {4}), ({"chunk_size_feed_forward": 7}, {1, 2, 4}), ({}, {2})],
)
def test_gradients_match_plain_backpropagation(changes: dict[str, Any], wanted: set[int]) -> None:
    network, packed = stack(**changes), pack_lists(TEXTS)
    share_dropout_seed(network, torch.device("cpu")).fill_(3)
    x = torch.randn(27, 12, requires_grad=True)
    results = []
    for run in (
        lambda given: run_reversible(list(network.layers), given, x, wanted),
        lambda given: run_plain(network, given, x),
    ):
        states = run(contexts(network, packed))
        states = states if len(states) == len(wanted) else [states[number - 1] for number in sorted(wanted)]
        loss = sum((state * torch.arange(24)).sin().sum() for state in states)
        parameters = dict(network.layers.named_parameters())
        found = torch.autograd.grad(loss, [x, *parameters.values()], allow_unused=True)
        results.append((states, dict(zip(["x", *parameters], found, strict=True))))
    (states, gradients), (plain_states, plain_gradients) = results
    for ours, theirs in zip(states, plain_states, strict=True):
        torch.testing.assert_close(ours, theirs)
    for name, gradient in plain_gradients.items():
        own = gradients[name]
        gradient = torch.zeros_like(own) if gradient is None else gradient  # of layers above the last that was wanted
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(own, gradient, atol=1e-4 * scale, rtol=1e-4, msg=name)


def test_only_trainable_parameters_get_gradients() -> None:
    network, packed = stack(), pack_lists(TEXTS)
    network.embed.requires_grad_(False)
    network.layers[1].requires_grad_(False)
    network(packed).last.sum().backward()
    assert all(p.grad is None for p in network.layers[1].parameters())
    assert all(p.grad is not None for p in network.layers[0].parameters())


def test_only_the_last_streams_are_saved_for_backward() -> None:
    network, packed = stack(), pack_lists(TEXTS)
    kept: list[int] = []
    x = network.embed(packed)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        run_reversible(list(network.layers), contexts(network, packed), x, {4})
    assert sum(kept) == 2 * 27 * 12


def test_slicing_the_feed_forward_network_changes_nothing() -> None:
    packed = pack_lists(TEXTS)
    whole, sliced = stack().eval(), stack(chunk_size_feed_forward=5).eval()
    torch.testing.assert_close(whole(packed).last, sliced(packed).last)


def test_branches_can_compute_in_half_precision() -> None:
    network, packed = stack(), pack_lists(TEXTS)
    exact = network(packed).last
    network.embed.compute = torch.bfloat16
    states = network(packed).last
    assert states.dtype == torch.bfloat16
    assert (states - exact).abs().mean() < 0.1
    states.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
