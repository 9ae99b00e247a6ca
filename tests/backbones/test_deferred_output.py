"""The top layer for chosen tokens alone: the same states as those of the whole layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pretune.backbones.backbone import DeferredOutput
from pretune.nn.attention.query_key_layout import layout_at, padded_groups, self_layout
from pretune.objectives import parse_objective
from pretune.packed import Batch, Packed, pack_lists
from tests.support.tiny_models import random_model, small_tokenizer

LENGTHS = [5, 1, 9, 4, 9]
RELATIVE = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
STACKS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("albert", "bert", "gpt2", "longformer", "modernbert", "mpnet", "performer", "xlnet")},
    "deberta": RELATIVE,
    "deberta-v2": RELATIVE | {"conv_kernel_size": 3, "share_att_key": True, "num_hidden_layers": 1},  # its only layer has a convolution beside it
}  # fmt: skip


def make(family: str, objective: str = "regress", **sizes: Any) -> Any:
    """Return the network of a tiny random model, in evaluation mode."""
    return random_model(family, small_tokenizer("wordpiece"), objective, **sizes).root


def packed_rows(lengths: list[int]) -> Packed:
    """Return packed sequences of the given lengths, with ids of arbitrary words."""
    return pack_lists([[20 + (7 * row + 3 * step) % 200 for step in range(n)] for row, n in enumerate(lengths)])


def counted_rows(layer: nn.Module) -> list[int]:
    """Return a list to which the number of tokens is added whenever the feed-forward network of a layer runs."""
    rows: list[int] = []
    network: Any = layer.feed_forward
    network.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    return rows


@pytest.mark.parametrize("family", STACKS)
@torch.no_grad()
def test_states_of_chosen_tokens_are_those_of_the_whole_layer(family: str) -> None:
    packed = packed_rows(LENGTHS)
    first, last = packed.offsets[:-1].long(), packed.offsets[1:].long() - 1
    backbone = make(family, **STACKS[family]).backbone
    expected = backbone(packed, keep="all").layers[-1]
    for at in (first, last, torch.tensor([1, 3, 8, 20, 20, 26]), torch.tensor([12])):
        output = backbone(packed)
        assert isinstance(output, DeferredOutput)
        torch.testing.assert_close(output.last_at(at), expected[at], rtol=0, atol=1e-6)
    torch.testing.assert_close(output.last, expected, rtol=0, atol=1e-6)


@given(data=st.data(), lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
@settings(max_examples=30, deadline=None)
@torch.no_grad()
def test_any_tokens_in_order_can_be_chosen(data: st.DataObject, lengths: list[int]) -> None:
    backbone, packed = make("gpt2").backbone, packed_rows(lengths)
    at = sorted(data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=8)))
    expected = backbone(packed, keep="all").layers[-1][at]
    torch.testing.assert_close(backbone(packed).last_at(torch.tensor(at)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", [[7], [4, 4, 4]])
@torch.no_grad()
def test_sequences_of_one_length_are_read_without_padding(lengths: list[int]) -> None:
    backbone, packed = make("bert").backbone, packed_rows(lengths)
    at = packed.offsets[:-1].long()
    layout = layout_at(self_layout(packed), at)
    (group,) = padded_groups(layout).groups
    assert (group.query_stride, group.key_stride, group.unpadded) == (1, lengths[0], True)
    expected = backbone(packed, keep="all").layers[-1][at]
    torch.testing.assert_close(backbone(packed).last_at(at), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_several_heads_share_the_states_of_the_same_tokens() -> None:
    backbone, packed = make("bert").backbone, packed_rows(LENGTHS)
    top = counted_rows(backbone.layers[-1])
    output = backbone(packed)
    first = packed.offsets[:-1].long()
    assert output.last_at(first) is output.last_at(first.clone())
    assert top == [len(LENGTHS)]
    output.last_at(packed.offsets[1:].long() - 1)
    assert top == [len(LENGTHS)] * 2


@torch.no_grad()
def test_the_feed_forward_network_runs_for_the_chosen_tokens_alone() -> None:
    backbone, packed = make("bert").backbone, packed_rows(LENGTHS)
    below, top = (counted_rows(layer) for layer in backbone.layers)
    backbone(packed).last_at(packed.offsets[:-1].long())
    assert below == [sum(LENGTHS)] and top == [len(LENGTHS)]


def test_training_computes_the_whole_layer() -> None:
    backbone, packed = make("bert").backbone, packed_rows(LENGTHS)
    at = packed.offsets[:-1].long()
    with torch.enable_grad():
        output = backbone(packed)
        assert not isinstance(output, DeferredOutput)
        assert torch.equal(output.last_at(at), output.last[at])


@pytest.mark.parametrize("pooling", ["cls", "last", "extract", "second_to_last", "mean", "attention", "pair"])
@torch.no_grad()
def test_heads_give_the_outputs_of_the_whole_layer(pooling: str) -> None:
    objective = f"regress(pooling={pooling})"
    root, packed = make("bert", objective), packed_rows([5, 0, 1, 9, 0])
    packed.columns["segment"] = torch.zeros_like(packed.ids)
    (task,) = parse_objective(objective).objectives
    head, states = root.heads["regress"], root.backbone(packed, keep="all").layers[-1]
    expected: Tensor = head(states, packed)[:, 0]
    top = counted_rows(root.backbone.layers[-1])
    found = task.outputs(head, root.backbone, Batch((packed,)))  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert top == [5 if pooling in ("cls", "last", "extract", "second_to_last") else len(packed)]
