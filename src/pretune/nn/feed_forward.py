"""Position-wise feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention import Flow
from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear

Activation = Callable[[Tensor], Tensor]


def relu_squared(x: Tensor) -> Tensor:
    """ReLU² (So et al., 2021)."""
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by a tanh (Hendrycks and Gimpel, 2016), as GPT has it."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_new": gelu_tanh,  # its name in published configurations
    "relu": F.relu,
    "relu2": relu_squared,
    "silu": F.silu,
    "tanh": lambda x: x.tanh(),
}


class FeedForward(nn.Module):
    """activation(x W₁) W₂."""

    def __init__(self, width: int, inner: int, activation: Activation = F.gelu, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.inner = Linear(width, inner, bias)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """(n, width) → (n, width)."""
        return self.output(self.activation(self.inner(x)))


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
        opened, gate = self.inner(x).chunk(2, dim=-1)
        return self.output(self.dropout(self.activation(opened) * gate))
