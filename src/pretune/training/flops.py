"""Floating-point operations, by formula: a multiply and an add count two, a backward costs two forwards, filler nothing.

For a stack of L layers over sequences of lengths n_i: every weight matrix is used once a token, and attention multiplies
queries with keys and weights with values, 2 · 2 · width operations for each pair of tokens. The head works on targets alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from pretune.backbones.encoder import Encoder
from pretune.nn.attention import Attention, CrossAttention, ScoredAttention
from pretune.packed import Batch

Array = np.ndarray[Any, np.dtype[Any]]


def every(module: nn.Module) -> Iterator[nn.Module]:
    """All modules below one; layers that run at several depths come as often as they run."""
    for child in module.modules():
        yield child
        if isinstance(child, Encoder):
            for layer, times in Counter(child.stack).items():
                for _ in range(times - 1):
                    yield from layer.modules()


def matrix_parameters(module: nn.Module) -> int:
    """Weights of all linear maps below a module."""
    return sum(child.weight.numel() for child in every(module) if isinstance(child, nn.Linear))


def attention_width(module: nn.Module) -> int:
    """Head widths of all self-attention below a module, added up."""
    kinds = (Attention, ScoredAttention)
    return sum(child.heads * child.head_width for child in every(module) if isinstance(child, kinds))


def cross_width(module: nn.Module) -> int:
    """The same for attention to a source."""
    return sum(child.heads * child.head_width for child in every(module) if isinstance(child, CrossAttention))


def forward_flops(root: nn.Module, batch: Batch) -> float:
    """One forward of a batch through backbone and heads."""
    backbone: Any = root.backbone
    sides = [_lengths(batch, side) for side in range(len(batch.packed))]
    total = 0.0
    if len(sides) == 1:
        total += (
            2 * matrix_parameters(backbone) * sides[0].sum() + 4 * attention_width(backbone) * (sides[0] ** 2).sum()
        )
        total += _recurrent(backbone) * sides[0].sum()
    else:
        source, target = sides
        encoder, layers = backbone.encoder, backbone.layers
        total += 2 * matrix_parameters(encoder) * source.sum() + 4 * attention_width(encoder) * (source**2).sum()
        cross = sum(c.key_value.weight.numel() for c in layers.modules() if isinstance(c, CrossAttention))
        total += 2 * (matrix_parameters(layers) - cross) * target.sum() + 2 * cross * source.sum()
        total += 4 * attention_width(layers) * (target**2).sum() + 4 * cross_width(layers) * (source * target).sum()
    heads: Any = root.heads
    vocabulary, width = backbone.embed.tokens.shape
    for name, head in heads.items():
        targets = batch.counts.get(name, 0.0)
        total += 2 * matrix_parameters(head) * targets
        if hasattr(head, "transform"):  # the tied softmax
            total += 2 * vocabulary * width * targets
    return float(total)


def _recurrent(backbone: nn.Module) -> float:
    """LSTM: the four gates' matrices, once a token."""
    cells = [child for child in backbone.modules() if isinstance(child, nn.LSTM)]
    return 2.0 * sum(p.numel() for cell in cells for p in cell.parameters() if p.dim() == 2)


def _lengths(batch: Batch, side: int) -> Array:
    """Lengths of the real sequences of one side."""
    packed = batch.packed[side]
    assert packed.host_offsets is not None
    return np.diff(packed.host_offsets[: len(batch.rows) + 1]).astype(np.float64)


def training_flops(root: nn.Module, batch: Batch) -> float:
    """Forward and backward."""
    return 3.0 * forward_flops(root, batch)
