"""Position-wise feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.errors import PretuneError, nearest
from pretune.nn.attention import Flow
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear

Activation = Callable[[Tensor], Tensor]


def relu_squared(x: Tensor) -> Tensor:
    """ReLU² (So et al., 2021)."""
    return F.relu(x).square()


def gelu(x: Tensor) -> Tensor:
    """GELU (Hendrycks and Gimpel, 2016), exact to the last bit that bf16 has."""
    return FastGelu.apply(x) if x.is_cuda and x.dtype == torch.bfloat16 else F.gelu(x)  # type: ignore[no-untyped-call]


class FastGelu(torch.autograd.Function):
    """GELU with a rational error function (Abramowitz and Stegun, 7.1.26; error 1.5e-7).

    The library's takes so many instructions that it, not memory, is what a fused kernel waits for; and here one exponential
    serves both the function and its slope.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        """Any shape."""
        ctx.save_for_backward(x)
        below, _ = normal(x.float())
        return (x * below).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        """Φ(x) + x φ(x)."""
        (x,) = ctx.saved_tensors
        below, density = normal(x.float())
        return (slope * (below + x * density)).to(x.dtype)


def normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the normal distribution below x, and its density there."""
    exponential = (-0.5 * x * x).exp()
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * x.abs())
    tail = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * t * tail * exponential  # beyond |x|
    return torch.where(x < 0, tail, 1.0 - tail), exponential * 0.3989422804014327


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh (Hendrycks and Gimpel, 2016)."""
    return F.gelu(x, approximate="tanh")


class _Activations(dict[str, Activation]):
    def __missing__(self, name: str) -> Activation:
        raise PretuneError(f"unknown activation {name!r}; {nearest(name, self)}")


ACTIVATIONS = _Activations(
    {
        "gelu": gelu,
        "gelu_new": gelu_tanh,
        "gelu_tanh": gelu_tanh,
        "relu": F.relu,
        "relu2": relu_squared,
        "silu": F.silu,
        "swish": F.silu,
        "tanh": lambda x: x.tanh(),
    }
)


class FeedForward(nn.Module):
    """activation(x W₁) W₂."""

    def __init__(
        self, width: int, inner: int, activation: Activation = gelu, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        """`dropout` is that of the inner values."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, inner, bias)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """(n, width) → (n, width)."""
        return self.output(self.dropout(self.activation(self.inner(x))))


class GatedFeedForward(nn.Module):
    """(activation(x W) ∘ x V) W₂ (Shazeer, 2020); W and V from one matrix."""

    def __init__(
        self, width: int, inner: int, activation: Activation = gelu, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        """`dropout` is that of the inner values."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """(n, width) → (n, width)."""
        opened, gate = self.inner(x).chunk(2, dim=-1)
        return self.output(self.dropout(self.activation(opened) * gate))
