"""The floating-point operations (FLOPs) of a model, by formula.

A multiply-add counts two operations, a backward pass costs two forward passes, and padding costs nothing. For layers over
sequences of lengths n_i: every weight matrix is used once per token, and attention multiplies queries with keys and weights
with values, 2 · 2 · width operations per pair of tokens (for causal attention too, as is customary; for a window, only pairs
inside it). Remembered tokens are additional keys and values. Relative positions multiply each query with every possible
distance. Heads compute only on targets; an encoder inside a head computes on all tokens.

Layers report the sizes that determine their operations (`pretune.nn.operation_counts`). Recomputation in a backward pass is not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.funnel import FunnelStack
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.backbones.two_streams import TwoStreams
from pretune.nn.attention.score_mods import FunnelScore
from pretune.nn.operation_counts import CountsTargetWeights, OperationSizes
from pretune.packed import Batch
from pretune.runtime.arrays import Array


@dataclass
class Flops:
    """A counter of the floating-point operations (FLOPs) of a model's forward and backward passes."""

    root: nn.Module

    def __post_init__(self) -> None:
        self._sizes = cache(module_sizes)
        self._head_sizes = cache(head_sizes)

    def training(self, batch: Batch) -> float:
        """Return the FLOPs of one forward and backward pass over a batch."""
        return 3.0 * sum(self.itemize(batch).values())

    def itemize(self, batch: Batch) -> dict[str, float]:
        """Return the FLOPs of a forward pass over a batch by component, such as matrices, attention, and heads."""
        backbone: Any = self.root.backbone
        sides = [_lengths(batch, side) for side in range(len(batch.packed))]
        if isinstance(backbone, FunnelStack):
            items: dict[str, Any] = self._pooled(backbone, sides[0], batch.packed[0].max_length)
        elif isinstance(backbone, TwoStreams):
            items = self._two_streams(backbone, sides[0], sides[1] if len(sides) > 1 else np.ones_like(sides[0]))
        elif len(sides) == 1 or isinstance(backbone, BidirectionalBackbone):
            # The two stacks may read different texts: equally many tokens, and half of the matrices for each.
            own, stack = sides[0], self._sizes(backbone)
            items = {
                "matrices": 2 * stack.matrices * own.sum(),
                "attention": stack.attention(own),
                "recurrence": 2 * stack.recurrence * own.sum(),
            }
            slots = getattr(backbone, "memory", 0) if "document_start" in batch.packed[0].columns else 0
            items |= {"memory": stack.memory(own, slots), "positions": stack.positions(own, batch.packed[0], slots)}
        else:
            source, target = sides
            # States of the source that each target attends to: those of its own source sequence, or one vector where
            # several targets share a pooled source (skip-thought).
            attended = source if len(source) == len(target) else np.ones_like(target)
            encoder, layers = self._sizes(backbone.encoder), self._sizes(backbone.layers)
            items = {
                "encoder matrices": 2 * encoder.matrices * source.sum(),
                "encoder attention": encoder.attention(source),
                "matrices": 2 * (layers.matrices - layers.cross) * target.sum() + 2 * layers.cross * attended.sum(),
                "attention": layers.attention(target),
                "cross attention": 4 * layers.cross_width * (attended * target).sum(),
            }
            if isinstance(backbone, RecurrentEncoderDecoder):
                top, width = self._sizes(backbone.top), backbone.encoder.width if backbone.alignment is not None else 0
                items["matrices"] += 2 * top.matrices * target.sum()
                items["recurrence"] = 2 * (encoder.recurrence * source.sum() + layers.recurrence * target.sum())
                items["cross attention"] = 4 * width * (attended * target).sum()
        heads: Any = self.root.heads
        for name, head in heads.items():
            items |= self._head(name, head, batch, sides[-1])
        return {name: float(value) for name, value in items.items()}

    def _two_streams(self, backbone: TwoStreams, text: Array, regions: Array) -> dict[str, float]:
        """Return the FLOPs of two streams with bridges by component, given the lengths, (sequences,), of their inputs."""
        items = dict.fromkeys(("matrices", "attention", "region matrices", "region attention", "co-attention"), 0.0)
        for prefix, own, parts in (
            ("", text, (backbone.embed, backbone.layers)),
            ("region ", regions, (backbone.embed_regions, backbone.region_layers)),
        ):
            for part in parts:
                sizes: OperationSizes = self._sizes(part)
                items[f"{prefix}matrices"] += 2 * sizes.matrices * own.sum()
                items[f"{prefix}attention"] += sizes.attention(own)
        for bridge in backbone.bridges:
            for prefix, own, other, part in (
                ("", text, regions, bridge.text),
                ("region ", regions, text, bridge.regions),
            ):
                sizes = self._sizes(part)
                items[f"{prefix}matrices"] += (
                    2 * (sizes.matrices - sizes.cross) * own.sum() + 2 * sizes.cross * other.sum()
                )
                items["co-attention"] += 4 * sizes.cross_width * (own * other).sum()
        return items

    def _pooled(self, backbone: FunnelStack, lengths: Array, longest: int) -> dict[str, float]:
        """Return the FLOPs of a Funnel Transformer by component: matrices, attention, and positions.

        `lengths`, (sequences,), has the numbers of tokens of the sequences, and `longest` is the maximum number.
        """
        items = dict.fromkeys(("matrices", "attention", "positions"), 0.0)
        blocks = backbone.blocks if backbone.decoder is None else [*backbone.blocks, backbone.decoder]
        own, most = keys, most_keys = lengths, longest
        for number, block in enumerate(blocks):
            if block is backbone.decoder:
                own, most = keys, most_keys = lengths, longest
            elif number:
                own, most = backbone.pooling.lengths(own), backbone.pooling.longest(most)
                if not backbone.pool_q_only:
                    keys, most_keys = own, most
            for layer in block.stack:
                sizes: OperationSizes = self._sizes(layer)
                items["matrices"] += 2 * (sizes.matrices - sizes.scored) * own.sum() + 2 * sizes.scored * keys.sum()
                items["attention"] += 4 * sizes.scored_width * (own * keys).sum()
                score: FunnelScore = layer.get_submodule("attention.part.score")  # type: ignore[assignment]
                items["positions"] += score.operations_within(own, most_keys)
                keys, most_keys = own, most
        return items

    def _head(self, name: str, head: nn.Module, batch: Batch, lengths: Array) -> dict[str, float]:
        """Return the FLOPs of the head `name` on a batch, by loss term, given sequence lengths, (sequences,)."""
        named = [(child, term) for child, _ in head.named_children() for term in (child, f"{name}_{child}")]
        others = {child: term for child, term in named if term in batch.targets}
        tied = self.root.backbone.embed.tokens.numel()  # type: ignore[union-attr, operator]
        items = {name: self._head_sizes(head, tied, tuple(others)).flops(batch.counts.get(name, 0.0), lengths)}
        for child, term in others.items():
            items[term] = self._head_sizes(head.get_submodule(child), tied).flops(batch.counts[term], lengths)
        return items


def module_sizes(module: nn.Module) -> OperationSizes:
    """Return the sizes that determine a module's FLOPs, summed over its layers (matrices, attention, recurrence)."""
    sizes = OperationSizes()
    for child in repeated_modules(module):
        sizes.add(child)
    return sizes


@dataclass(frozen=True)
class HeadSizes:
    """The sizes that determine the FLOPs of a model head: its number of weights, and its inner encoders."""

    weights: int  # used once per target
    encoders: list[OperationSizes]  # that read all tokens

    def flops(self, targets: float, lengths: Array) -> float:
        """Return the FLOPs of a head on sequences of the given lengths, (sequences,), with `targets` targets in all."""
        if not targets:
            return 0.0
        inside = sum(2 * sizes.matrices * lengths.sum() + sizes.attention(lengths) for sizes in self.encoders)
        return float(2 * self.weights * targets + inside)


def head_sizes(part: nn.Module, tied: int, without: tuple[str, ...] = ()) -> HeadSizes:
    """Return the sizes that determine the FLOPs of the head `part`, without its child modules named in `without`.

    `tied` is the number of weights in the token embedding, which the output layer of the head may share.
    """
    if isinstance(part, TransformerStack):
        return HeadSizes(0, [module_sizes(part)])
    if isinstance(part, CountsTargetWeights):
        return HeadSizes(part.weights_per_target(tied), [])
    own = part.weight.numel() if isinstance(part, nn.Linear) else 0
    children = [head_sizes(child, tied) for name, child in part.named_children() if name not in without]
    return HeadSizes(
        own + sum(child.weights for child in children), [sizes for child in children for sizes in child.encoders]
    )


def repeated_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all its submodules; a layer that is shared by several depths is yielded once per depth."""
    for child in module.modules():
        yield child
        if isinstance(child, TransformerStack):
            for layer, times in Counter(child.stack).items():
                for _ in range(times - 1):
                    yield from layer.modules()


def _lengths(batch: Batch, side: int) -> Array:
    """Return the lengths of the sequences on one side of a batch (0: source, 1: target), without padding."""
    if batch.lengths:
        return batch.lengths[side].astype(np.float64)
    packed = batch.packed[side]
    assert packed.host_offsets is not None
    return np.diff(packed.host_offsets[: len(batch.rows) + 1]).astype(np.float64)
