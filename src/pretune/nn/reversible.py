"""Reversible layers (Gomez et al., 2017, arXiv:1707.04585; Kitaev et al., 2020, arXiv:2001.04451).

Two streams of states alternately update each other:

    first  += attention(second)
    second += feed_forward(first)

The inputs of a layer can be computed from its outputs. So a stack saves only the outputs of its last layer, and its
backward pass recomputes all other activations from them. Streams are fp32 even if the branches compute in half
precision, so that updates can be subtracted accurately.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.compiler_exclusions import exclude_from_compile
from pretune.nn.dropout import Dropout


class ReversibleBranch(nn.Module):
    """A branch dropout(part(norm(x))) of a reversible layer, which reads one residual stream and adds to the other."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float = 0.0, chunk_size: int = 0) -> None:
        """Build a branch of a reversible layer, whose `part` processes `chunk_size` tokens at a time (0: all)."""
        super().__init__()
        self.part, self.norm, self.dropout, self.chunk_size = part, norm, Dropout(dropout), chunk_size

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply a branch of a reversible layer to one residual stream: (n, width) → (n, width)."""
        # Chunks save memory; dropout inside the part is the same for each of them.
        chunks = torch.split(x, self.chunk_size) if self.chunk_size else (x,)
        return self.dropout(torch.cat([self.part(self.norm(x), context) for x in chunks]), context.depth)

    def in_dtype(self, x: Tensor, context: AttentionContext, kind: torch.dtype) -> Tensor:
        """Apply the branch to an fp32 residual stream, computing in the dtype `kind`, and return fp32."""
        out: Tensor = self(x.to(kind), context)
        return out.float()


class ReversibleLayer(nn.Module):
    """A reversible layer (Reformer): attention and a feed-forward network between two residual streams."""

    def __init__(self, attention: ReversibleBranch, feed_forward: ReversibleBranch) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(
        self, first: Tensor, second: Tensor, context: AttentionContext, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return both residual streams after the layer, (n, width) fp32 each; branches compute in the dtype `kind`."""
        first = first + self.attention.in_dtype(second, context, kind)
        return first, second + self.feed_forward.in_dtype(first, context, kind)

    def invert(
        self, first: Tensor, second: Tensor, context: AttentionContext, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Recover the inputs of the layer, two residual streams, from its outputs, (n, width) fp32 each."""
        second = second - self.feed_forward.in_dtype(first, context, kind)
        return first - self.attention.in_dtype(second, context, kind), second


# Compilers do not support a backward pass that runs a forward pass.
@exclude_from_compile
def run_reversible(
    layers: Sequence[ReversibleLayer], contexts: Sequence[AttentionContext], x: Tensor, wanted: Collection[int]
) -> list[Tensor]:
    """Run reversible layers on x, (n, width), and return the states, (n, 2 · width) in fp32, after the layers `wanted`.

    Layers are counted from 1; `contexts` has one attention context per layer.
    """
    parameters = [p for layer in layers for branch in (layer.attention, layer.feed_forward) for p in _trainable(branch)]
    return list(_Stack.apply(layers, contexts, wanted, x.dtype, x.float(), *parameters))  # type: ignore[no-untyped-call]


def _trainable(branch: ReversibleBranch) -> list[nn.Parameter]:
    return [parameter for parameter in branch.parameters() if parameter.requires_grad]


class _Stack(torch.autograd.Function):
    """A stack of reversible layers, whose backward pass recomputes the activations from the last outputs."""

    @staticmethod
    def forward(
        ctx: Any, layers: Any, contexts: Any, wanted: Any, kind: torch.dtype, x: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        first = second = x
        states = []
        for number, (layer, context) in enumerate(zip(layers, contexts, strict=True), 1):
            first, second = layer(first, second, context, kind)
            if number in wanted:
                states.append(torch.cat([first, second], 1))
        ctx.layers, ctx.contexts, ctx.wanted, ctx.kind = layers, contexts, wanted, kind
        ctx.save_for_backward(first, second)
        ctx.set_materialize_grads(False)
        return tuple(states)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        first, second = ctx.saved_tensors
        to_first, to_second = torch.zeros_like(first), torch.zeros_like(second)
        remaining = list(gradients)
        found: list[tuple[Tensor | None, ...]] = []  # gradients of parameters, from the last layer to the first
        for number in range(len(ctx.layers), 0, -1):
            layer, context = ctx.layers[number - 1], ctx.contexts[number - 1]
            if number in ctx.wanted and (gradient := remaining.pop()) is not None:
                more_first, more_second = gradient.chunk(2, 1)
                to_first, to_second = to_first + more_first, to_second + more_second
            added, through, own = _back(layer.feed_forward, first, context, ctx.kind, to_second)
            second, to_first = second - added, to_first + through
            found.append(own)
            added, through, own = _back(layer.attention, second, context, ctx.kind, to_first)
            first, to_second = first - added, to_second + through
            found.append(own)
        return None, None, None, None, to_first + to_second, *(one for some in found[::-1] for one in some)


def _back(
    branch: ReversibleBranch, x: Tensor, context: AttentionContext, kind: torch.dtype, gradient: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Recompute the output of a reversible branch on x, and backpropagate through it.

    `gradient` is the gradient of the output. Return the output, the gradient of x, and those of the branch's
    parameters.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        added = branch.in_dtype(x, context, kind)
    found = torch.autograd.grad(added, [x, *_trainable(branch)], gradient, allow_unused=True)
    return added.detach(), found[0], found[1:]
