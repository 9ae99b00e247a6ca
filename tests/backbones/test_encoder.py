"""Encoders with shared layers."""

from __future__ import annotations

import torch

from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.initialization import initialize
from pretune.nn.linear import Linear
from pretune.packed import pack_lists
from tests.support.tiny_training_cases import WIDTH, embeddings, head, layer


def make(order: list[int] | None = None) -> TransformerStack:
    torch.manual_seed(0)
    stack = TransformerStack(
        embeddings(),
        [layer() for _ in range(2)],
        vocabulary_head=head,
        pooler=lambda: Linear(WIDTH, WIDTH),
        order=order,
    )
    return initialize(stack, 0.2)


def test_shared_layers_run_in_the_given_order() -> None:
    packed = pack_lists([[5, 6, 7], [8, 9]])
    plain, woven = make(), make([0, 1, 1, 0])
    assert len(plain.stack) == 2 and len(woven.stack) == 4
    states = woven(packed, keep="all").layers
    assert len(states) == 5
    for first, second in zip(plain(packed, keep="all").layers, states, strict=False):
        assert torch.equal(first, second)
    assert not torch.allclose(states[2], states[3])
    assert len(woven.groups()) == 3
    assert woven.state_dict().keys() == plain.state_dict().keys()
