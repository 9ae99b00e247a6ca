"""Floating-point operations, by formula: a multiply and an add count two, a backward costs two forwards, filler nothing.

For a stack of layers over sequences of lengths n_i: every weight matrix is used once a token, and attention multiplies queries
with keys and weights with values, 2 · 2 · width operations for each pair of tokens (causal attention too, as is the custom; a
window only for the pairs inside it). Tokens that are remembered are keys and values too. Relative positions have a product of
each query with every distance there can be. Heads work on targets alone; an encoder inside a head, on all tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from pretune.backbones.encoder import Encoder
from pretune.nn.adaptive import AdaptiveHead
from pretune.nn.attention import Attention, CrossAttention, ScoredAttention
from pretune.nn.heads import VocabularyHead
from pretune.nn.scores import TransformerXL
from pretune.packed import Batch, Packed

Array = np.ndarray[Any, np.dtype[Any]]


def itemize(root: nn.Module, batch: Batch) -> dict[str, float]:
    """One forward of a batch, item by item: matrices, attention, recurrence, and each head."""
    backbone: Any = root.backbone
    sides = [_lengths(batch, side) for side in range(len(batch.packed))]
    if len(sides) == 1:
        (own,) = sides
        items = {
            "matrices": 2 * matrix_parameters(backbone) * own.sum(),
            "attention": attention_flops(backbone, own),
            "recurrence": 2 * recurrent_parameters(backbone) * own.sum(),
        }
        slots = getattr(backbone, "memory", 0) if "fresh" in batch.packed[0].columns else 0
        items |= relative_flops(backbone, own, batch.packed[0], slots)
    else:
        source, target = sides
        seen = np.ones_like(target) if batch.pooled else source  # states of the source that each target looks at
        encoder, layers = backbone.encoder, backbone.layers
        cross = sum(c.key_value.weight.numel() for c in every(layers) if isinstance(c, CrossAttention))
        items = {
            "encoder matrices": 2 * matrix_parameters(encoder) * source.sum(),
            "encoder attention": attention_flops(encoder, source),
            "matrices": 2 * (matrix_parameters(layers) - cross) * target.sum() + 2 * cross * seen.sum(),
            "attention": attention_flops(layers, target),
            "cross attention": 4 * cross_width(layers) * (seen * target).sum(),
        }
    heads: Any = root.heads
    for name, head in heads.items():
        items |= head_flops(name, head, batch, sides[-1], backbone.embed.tokens.numel())
    return {name: float(value) for name, value in items.items()}


def head_flops(name: str, head: nn.Module, batch: Batch, lengths: Array, tied: int) -> dict[str, float]:
    """A head on its targets. A part of it that is named as another term (rtd's generator) is an item of its own.

    `tied` are the weights of the token embedding, which a way to the vocabulary ends in.
    """
    others = [child for child, _ in head.named_children() if child in batch.targets]
    items = {name: part_flops(head, batch.counts.get(name, 0.0), lengths, tied, without=others)}
    for term in others:
        items[term] = part_flops(head.get_submodule(term), batch.counts[term], lengths, tied)
    return items


def part_flops(part: nn.Module, targets: float, lengths: Array, tied: int, without: Sequence[str] = ()) -> float:
    """A part of a head, its children `without` some of them included."""
    if not targets:
        return 0.0
    if isinstance(part, Encoder):
        return float(2 * matrix_parameters(part) * lengths.sum() + attention_flops(part, lengths))
    if isinstance(part, AdaptiveHead):
        return 2 * part.weights * targets
    weights = part.weight.numel() if isinstance(part, nn.Linear) else tied if isinstance(part, VocabularyHead) else 0
    children = [child for name, child in part.named_children() if name not in without]
    return 2 * weights * targets + sum(part_flops(child, targets, lengths, tied) for child in children)


def forward_flops(root: nn.Module, batch: Batch) -> float:
    """One forward of a batch through backbone and heads."""
    return sum(itemize(root, batch).values())


def training_flops(root: nn.Module, batch: Batch) -> float:
    """Forward and backward."""
    return 3.0 * forward_flops(root, batch)


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


def recurrent_parameters(module: nn.Module) -> int:
    """Weights of the gates of all LSTMs below a module."""
    cells = (child for child in every(module) if isinstance(child, nn.LSTM))
    return sum(p.numel() for cell in cells for p in cell.parameters() if p.dim() == 2)


def attention_flops(module: nn.Module, lengths: Array) -> float:
    """Queries times keys and weights times values, in all self-attention below a module."""
    total = 0.0
    for child in every(module):
        if isinstance(child, Attention | ScoredAttention):
            reach = child.pattern.reach or (-1, -1)
            total += 4 * child.heads * child.head_width * pairs(lengths, reach).sum()
    return total


def relative_flops(module: nn.Module, lengths: Array, packed: Packed, slots: int) -> dict[str, float]:
    """Memory of `slots` tokens a sequence, and Transformer-XL's scores, in all self-attention below a module."""
    items = {"memory": 0.0, "positions": 0.0}
    for child in every(module):
        if isinstance(child, ScoredAttention):
            inner = child.heads * child.head_width
            items["memory"] += 2 * slots * (child.key_value.weight.numel() * len(lengths) + 2 * inner * lengths.sum())
            if isinstance(score := child.score, TransformerXL):
                distances = 2 * score.reach(packed.longest + slots) + 1
                compared = distances + (2 if score.segment is not None and "segment" in packed.columns else 0)
                items["positions"] += 2 * distances * score.position.numel() + 2 * inner * compared * lengths.sum()
    return items


def pairs(lengths: Array, reach: tuple[int, int]) -> Array:
    """How many keys all tokens of a sequence see together, for each sequence, if they look so far back and ahead.

    >>> pairs(np.array([5.0]), (1, 1)).tolist()  # 2 + 3 + 3 + 3 + 2
    [13.0]
    """
    back, ahead = reach
    if back < 0 or ahead < 0:  # without limit on a side
        return lengths**2
    seen = lengths.copy()
    for limit in (back, ahead):
        near = np.minimum(lengths - 1, limit)  # tokens that see less than the limit on this side
        seen += near * (near + 1) / 2 + (lengths - 1 - near) * near
    return np.asarray(seen)


def cross_width(module: nn.Module) -> int:
    """Head widths of all attention to a source below a module, added up."""
    return sum(child.heads * child.head_width for child in every(module) if isinstance(child, CrossAttention))


def _lengths(batch: Batch, side: int) -> Array:
    """Lengths of the real sequences of one side."""
    if batch.lengths:
        return batch.lengths[side].astype(np.float64)
    packed = batch.packed[side]
    assert packed.host_offsets is not None
    return np.diff(packed.host_offsets[: len(batch.rows) + 1]).astype(np.float64)
