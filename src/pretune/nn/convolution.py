"""Convolutions along sequences, and Transformer layers with a parallel convolution (DeBERTa)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import AttentionLayout
from pretune.nn.dropout import Dropout
from pretune.nn.feed_forward import Activation
from pretune.nn.operation_counts import OperationSizes


class Convolution(nn.Module):
    """A convolution over `size` neighboring tokens, with zero padding at the ends of each sequence."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width, size))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Convolve the hidden states within each packed sequence: (n, width) → (n, width)."""
        (starts, ends), size = layout.queries.bounds, self.weight.shape[2]
        neighbors = []
        for step in range(size):
            at = torch.arange(len(x), device=x.device) + step - (size - 1) // 2
            inside = (at >= starts) & (at < ends)
            neighbors.append(torch.where(inside[:, None], x[at.clamp(0, len(x) - 1)], 0.0))
        windows = torch.stack(neighbors, dim=-1).flatten(1)  # (n, width · size)
        return F.linear(windows, self.weight.flatten(1).to(x.dtype), self.bias.to(x.dtype))

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the weights of this convolution to `sizes`, from which the FLOPs of a model are computed."""
        sizes.matrices += self.weight.numel()


class WithConvolution(nn.Module):
    """A layer with a parallel convolution (large DeBERTa-v2): norm(layer(x) + activation(convolution(x)))."""

    def __init__(
        self, layer: nn.Module, convolution: Convolution, activation: Activation, norm: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layer, self.convolution, self.norm = layer, convolution, norm
        self.activation, self.dropout = activation, Dropout(dropout)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply a layer and its parallel convolution to hidden states: (n, width) → (n, width)."""
        convolved = self.activation(self.dropout(self.convolution(x, context.layout), context.depth))
        if context.at is not None:
            convolved = convolved[context.at]
        return self.norm(self.layer(x, context) + convolved)
