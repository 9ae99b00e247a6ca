"""Reversible layers (Gomez et al., 2017, arXiv:1707.04585; Kitaev et al., 2020, arXiv:2001.04451).

Two streams of states, each changed by what the other is:

    first  += attention(second)
    second += feed_forward(first)

What went into a layer follows from what came out. So a stack keeps what came out of its last layer alone, and its backward
computes the rest again from there. Streams are fp32, whatever the branches compute in: what is added must come off again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pretune.nn.attention.multi_head import Flow
from pretune.nn.compiler_exclusions import uncompiled
from pretune.nn.dropout import Dropout


class Branch(nn.Module):
    """dropout(part(norm(x))): what a stream adds to the other one."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float = 0.0, at_once: int = 0) -> None:
        """`at_once`: so many tokens go through the part at a time, which a feed-forward network may, for the memory's sake; 0:
        all. Dropout inside the part is the same for every such slice."""
        super().__init__()
        self.part, self.norm, self.dropout, self.at_once = part, norm, Dropout(dropout), at_once

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) → (n, width)."""
        slices = torch.split(x, self.at_once) if self.at_once else (x,)
        out: Tensor = self.dropout(torch.cat([self.part(self.norm(x), flow) for x in slices]), flow.depth)
        return out

    def beside(self, x: Tensor, flow: Flow, kind: torch.dtype) -> Tensor:
        """The same for fp32, computed in another type."""
        out: Tensor = self(x.to(kind), flow)
        return out.float()


class ReversibleLayer(nn.Module):
    """Attention and a feed-forward network between two streams."""

    def __init__(self, attention: Branch, feed_forward: Branch) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, first: Tensor, second: Tensor, flow: Flow, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """(n, width) each, fp32."""
        first = first + self.attention.beside(second, flow, kind)
        return first, second + self.feed_forward.beside(first, flow, kind)

    def invert(self, first: Tensor, second: Tensor, flow: Flow, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """What went in, from what came out."""
        second = second - self.feed_forward.beside(first, flow, kind)
        return first - self.attention.beside(second, flow, kind), second


# A backward that computes a forward is more than a compiler follows.
@uncompiled
def run_reversible(
    layers: Sequence[ReversibleLayer], flows: Sequence[Flow], x: Tensor, wanted: Collection[int]
) -> list[Tensor]:
    """(n, width) goes into both streams; what comes out of the layers that are wanted, (n, 2 · width) fp32 each.

    Layers are numbered from 1.
    """
    parameters = [p for layer in layers for branch in (layer.attention, layer.feed_forward) for p in _learned(branch)]
    return list(_Stack.apply(layers, flows, wanted, x.dtype, x.float(), *parameters))  # type: ignore[no-untyped-call]


def _learned(branch: Branch) -> list[nn.Parameter]:
    return [parameter for parameter in branch.parameters() if parameter.requires_grad]


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layers: Any, flows: Any, wanted: Any, kind: torch.dtype, x: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        first = second = x
        states = []
        for number, (layer, flow) in enumerate(zip(layers, flows, strict=True), 1):
            first, second = layer(first, second, flow, kind)
            if number in wanted:
                states.append(torch.cat([first, second], 1))
        ctx.layers, ctx.flows, ctx.wanted, ctx.kind = layers, flows, wanted, kind
        ctx.save_for_backward(first, second)
        ctx.set_materialize_grads(False)
        return tuple(states)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        first, second = ctx.saved_tensors
        to_first, to_second = torch.zeros_like(first), torch.zeros_like(second)
        given = list(gradients)
        found: list[tuple[Tensor | None, ...]] = []  # of parameters, from the top down
        for number in range(len(ctx.layers), 0, -1):
            layer, flow = ctx.layers[number - 1], ctx.flows[number - 1]
            if number in ctx.wanted and (gradient := given.pop()) is not None:
                more_first, more_second = gradient.chunk(2, 1)
                to_first, to_second = to_first + more_first, to_second + more_second
            added, through, own = _back(layer.feed_forward, first, flow, ctx.kind, to_second)
            second, to_first = second - added, to_first + through
            found.append(own)
            added, through, own = _back(layer.attention, second, flow, ctx.kind, to_first)
            first, to_second = first - added, to_second + through
            found.append(own)
        return None, None, None, None, to_first + to_second, *(one for some in found[::-1] for one in some)


def _back(
    branch: Branch, x: Tensor, flow: Flow, kind: torch.dtype, gradient: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """What a branch adds, computed again, and the gradients of what goes into it and of its parameters."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        added = branch.beside(x, flow, kind)
    found = torch.autograd.grad(added, [x, *_learned(branch)], gradient, allow_unused=True)
    return added.detach(), found[0], found[1:]
