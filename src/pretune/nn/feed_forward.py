"""Position-wise feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.dropout import Dropout
from pretune.nn.kernels import supports_custom_kernels
from pretune.nn.linear import Linear
from pretune.nn.saved_activations import SavedActivations
from pretune.nn.structured_pruning import PrunableUnits
from pretune.runtime.errors import PretuneError, suggest

Activation = Callable[[Tensor], Tensor]


def relu_squared(x: Tensor) -> Tensor:
    """Return the square of ReLU (So et al., 2021)."""
    return F.relu(x).square()


class _Activations(dict[str, Activation]):
    """A mapping from names to activation functions that raises an error with suggestions for an unknown name."""

    def __missing__(self, name: str) -> Activation:
        raise PretuneError(f"unknown activation {name!r}; {suggest(str(name), self)}")


gelu_tanh = partial(F.gelu, approximate="tanh")  # the tanh approximation (Hendrycks and Gimpel, 2016)
# Every activation that has a name in `transformers`, except those with parameters (prelu, xielu), for which the checkpoint
# layouts of the families have no place.
ACTIVATIONS = _Activations(
    {
        "gelu": F.gelu,
        "gelu_10": lambda x: F.gelu(x).clip(-10.0, 10.0),  # a range suitable for int8 quantization
        "gelu_accurate": gelu_tanh,
        "gelu_fast": gelu_tanh,
        "gelu_new": gelu_tanh,
        "gelu_python": F.gelu,
        "gelu_python_tanh": gelu_tanh,
        "gelu_pytorch_tanh": gelu_tanh,
        "gelu_tanh": gelu_tanh,
        "hardswish": F.hardswish,
        "laplace": lambda x: 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * 2.0**0.5))),  # MEGA (Ma et al., 2022)
        "leaky_relu": F.leaky_relu,
        "linear": lambda x: x,
        "mish": F.mish,
        "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),  # GELU approximated (Hendrycks and Gimpel, 2016)
        "relu": F.relu,
        "relu2": relu_squared,
        "relu6": F.relu6,
        "sigmoid": torch.sigmoid,
        "silu": F.silu,
        "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
        "swish": F.silu,
        "tanh": torch.tanh,
    }
)


class FeedForward(PrunableUnits):
    """A feed-forward network, activation(x W₁) W₂, applied to each token."""

    def __init__(
        self, width: int, inner: int, activation: Activation = F.gelu, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        """Build a feed-forward network for states of size `width`; `dropout` applies to the `inner` hidden units."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, inner, bias)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, context: AttentionContext | None = None) -> Tensor:
        """Apply the feed-forward network to each token, (n, width) → (n, width); `context` is ignored."""
        inner = self.inner
        if self.activation is F.gelu and inner.bias is not None and supports_custom_kernels(x):
            from pretune.nn.kernels.gelu import bias_gelu

            hidden: Tensor = bias_gelu(F.linear(inner.quantized(x), inner.weight.to(x.dtype)), inner.bias)
        else:
            hidden = self.activation(inner(x))
        return self.output(self.dropout(hidden))

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.width += self.inner.in_features + self.output.in_features
        if self.activation is not F.relu:  # its backward pass reads its output
            saved.width += self.inner.out_features


class GatedFeedForward(PrunableUnits):
    """A gated feed-forward network, (activation(x W) ∘ x V) W₂ (Shazeer, 2020), with W and V in one matrix."""

    def __init__(
        self, width: int, inner: int, activation: Activation = F.gelu, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        """Build a gated feed-forward network for states of size `width`; `dropout` applies to the `inner` units."""
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        self.inner = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, context: AttentionContext | None = None) -> Tensor:
        """Apply the gated feed-forward network to each token, (n, width) → (n, width); `context` is ignored."""
        both = self.inner(x)
        if self.activation is F.gelu and supports_custom_kernels(x):
            from pretune.nn.kernels.gelu import gated_gelu

            gated: Tensor = gated_gelu(both)
        else:
            hidden, gate = both.chunk(2, dim=-1)
            gated = self.activation(hidden) * gate
        return self.output(self.dropout(gated))

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.inner)
        saved.width += self.output.in_features
