"""Position-wise feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from pretune.errors import PretuneError, nearest
from pretune.nn.attention import Flow
from pretune.nn.dropout import Dropout
from pretune.nn.kernels import ours
from pretune.nn.linear import Linear

Activation = Callable[[Tensor], Tensor]


def relu_squared(x: Tensor) -> Tensor:
    """ReLU² (So et al., 2021)."""
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with tanh (Hendrycks and Gimpel, 2016)."""
    return F.gelu(x, approximate="tanh")


class _Activations(dict[str, Activation]):
    def __missing__(self, name: str) -> Activation:
        raise PretuneError(f"unknown activation {name!r}; {nearest(name, self)}")


ACTIVATIONS = _Activations(
    {
        "gelu": F.gelu,
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
        self, width: int, inner: int, activation: Activation = F.gelu, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        """`dropout` is that of the inner values."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, inner, bias)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """(n, width) → (n, width)."""
        inner = self.inner
        if self.activation is F.gelu and inner.bias is not None and ours(x):
            from pretune.nn.kernels.gelu import bias_gelu

            opened: Tensor = bias_gelu(F.linear(inner.quantized(x), inner.weight.to(x.dtype)), inner.bias)
        else:
            opened = self.activation(inner(x))
        return self.output(self.dropout(opened))


class GatedFeedForward(nn.Module):
    """(activation(x W) ∘ x V) W₂ (Shazeer, 2020); W and V from one matrix."""

    def __init__(
        self, width: int, inner: int, activation: Activation = F.gelu, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        """`dropout` is that of the inner values."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """(n, width) → (n, width)."""
        both = self.inner(x)
        if self.activation is F.gelu and ours(x):
            from pretune.nn.kernels.gelu import gated_gelu

            gated: Tensor = gated_gelu(both)
        else:
            opened, gate = both.chunk(2, dim=-1)
            gated = self.activation(opened) * gate
        return self.output(self.dropout(gated))
