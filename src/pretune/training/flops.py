"""The floating-point operations (FLOPs) of a model, by formula.

A multiply-add counts two operations, a backward pass costs two forward passes, and padding costs nothing. For layers over
sequences of lengths n_i: every weight matrix is used once per token, and attention multiplies queries with keys and weights
with values, 2 · 2 · width operations per pair of tokens (for causal attention too, as is customary; for a window, only pairs
inside it). Remembered tokens are additional keys and values. Relative positions multiply each query with every possible
distance. Heads compute only on targets; an encoder inside a head computes on all tokens.

Other kinds of attention (chunked, random features) report their own operations. Recomputation in a backward pass is not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from pretune.backbones.bidirectional import TwoWays
from pretune.backbones.encoder import Encoder
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.nn.adaptive_softmax import AdaptiveHead
from pretune.nn.attention.big_bird import BlockSparseAttention
from pretune.nn.attention.disentangled import DisentangledAttention
from pretune.nn.attention.lsh import LSHAttention
from pretune.nn.attention.multi_head import Attention, CrossAttention, GlobalAttention, ScoredAttention
from pretune.nn.attention.score_mods import TransformerXL
from pretune.nn.character_cnn import SpelledEmbeddings
from pretune.nn.convolution import Convolution
from pretune.nn.output_heads import VocabularyHead
from pretune.nn.recurrent import Recurrence
from pretune.packed import Batch, Packed

Array = np.ndarray[Any, np.dtype[Any]]


def itemize(root: nn.Module, batch: Batch) -> dict[str, float]:
    """Return the FLOPs of one forward pass by item: matrices, attention, recurrence, and each head."""
    return Flops(root).itemize(batch)


def forward_flops(root: nn.Module, batch: Batch) -> float:
    """Return the FLOPs of one forward pass through the backbone and the heads."""
    return sum(itemize(root, batch).values())


def training_flops(root: nn.Module, batch: Batch) -> float:
    """Return the FLOPs of one forward and backward pass."""
    return Flops(root).training(batch)


@dataclass
class Flops:
    """A counter of the FLOPs of batches, which looks up the sizes of the model only once."""

    root: nn.Module
    sizes: dict[nn.Module, Sizes] = field(default_factory=dict)
    heads: dict[tuple[nn.Module, tuple[str, ...]], HeadSizes] = field(default_factory=dict)

    def training(self, batch: Batch) -> float:
        """Return the FLOPs of one forward and backward pass."""
        return 3.0 * sum(self.itemize(batch).values())

    def itemize(self, batch: Batch) -> dict[str, float]:
        """Return the FLOPs of one forward pass by item."""
        backbone: Any = self.root.backbone
        sides = [_lengths(batch, side) for side in range(len(batch.packed))]
        if len(sides) == 1 or isinstance(backbone, TwoWays):
            # The two stacks may read different texts: equally many tokens, and half of the matrices for each.
            own = sides[0]
            stack = self._sizes(backbone)
            items = {
                "matrices": 2 * stack.matrices * own.sum(),
                "attention": stack.attention(own),
                "recurrence": 2 * stack.recurrence * own.sum(),
            }
            slots = getattr(backbone, "memory", 0) if "fresh" in batch.packed[0].columns else 0
            items |= {"memory": stack.memory(own, slots), "positions": stack.positions(own, batch.packed[0], slots)}
        else:
            source, target = sides
            # States of the source that each target attends to: those of its own source sequence, or one vector where
            # several targets share a pooled source (skip-thought).
            seen = source if len(source) == len(target) else np.ones_like(target)
            encoder, layers = self._sizes(backbone.encoder), self._sizes(backbone.layers)
            items = {
                "encoder matrices": 2 * encoder.matrices * source.sum(),
                "encoder attention": encoder.attention(source),
                "matrices": 2 * (layers.matrices - layers.cross) * target.sum() + 2 * layers.cross * seen.sum(),
                "attention": layers.attention(target),
                "cross attention": 4 * layers.cross_width * (seen * target).sum(),
            }
            if isinstance(backbone, RecurrentEncoderDecoder):
                top, looks = self._sizes(backbone.top), backbone.encoder.width if backbone.alignment is not None else 0
                items["matrices"] += 2 * top.matrices * target.sum()
                items["recurrence"] = 2 * (encoder.recurrence * source.sum() + layers.recurrence * target.sum())
                items["cross attention"] = 4 * looks * (seen * target).sum()
        heads: Any = self.root.heads
        for name, head in heads.items():
            items |= self._head(name, head, batch, sides[-1])
        return {name: float(value) for name, value in items.items()}

    def _head(self, name: str, head: nn.Module, batch: Batch, lengths: Array) -> dict[str, float]:
        """Return the FLOPs of a head on its targets; a part with its own loss term (rtd's generator) is a separate item."""
        named = [(child, term) for child, _ in head.named_children() for term in (child, f"{name}_{child}")]
        others = {child: term for child, term in named if term in batch.targets}
        items = {name: self._part(head, tuple(others)).flops(batch.counts.get(name, 0.0), lengths)}
        for child, term in others.items():
            items[term] = self._part(head.get_submodule(child)).flops(batch.counts[term], lengths)
        return items

    def _sizes(self, module: nn.Module) -> Sizes:
        if module not in self.sizes:
            self.sizes[module] = module_sizes(module)
        return self.sizes[module]

    def _part(self, part: nn.Module, without: tuple[str, ...] = ()) -> HeadSizes:
        if (part, without) not in self.heads:
            tokens: Any = self.root.backbone.embed.tokens  # type: ignore[union-attr]
            self.heads[part, without] = head_sizes(part, tokens.numel(), without)
        return self.heads[part, without]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a stack of layers that determine its FLOPs."""

    matrices: int  # weights of all linear layers and convolutions
    recurrence: int  # weights of the gates of all LSTMs
    widths: dict[tuple[int, int], int]  # summed over all self-attention, by how far it reaches back and ahead
    cross: int  # weights of the keys and values of a source, which are among the matrices
    cross_width: int  # summed over all cross-attention
    scored: int  # weights of the keys and values of attention with a memory, which are among the matrices
    scored_width: int  # summed over all such attention
    scores: list[TransformerXL]  # relative positions
    disentangled: list[DisentangledAttention]
    others: list[Callable[[Array], float]]  # operations of other kinds of self-attention, as functions of the lengths

    def attention(self, lengths: Array) -> float:
        """Return the FLOPs of queries times keys and weights times values in all self-attention."""
        plain = sum(4 * width * pairs(lengths, reach).sum() for reach, width in self.widths.items())
        return float(plain + sum(operations(lengths) for operations in self.others))

    def memory(self, lengths: Array, slots: int) -> float:
        """Return the FLOPs of the keys and values of remembered tokens, `slots` per sequence, and of attention to them."""
        return float(2 * slots * (self.scored * len(lengths) + 2 * self.scored_width * lengths.sum()))

    def positions(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of relative positions.

        Transformer-XL projects a vector per distance, and multiplies queries with each of them and each kind of segment.
        DeBERTa projects two vectors per distance, and multiplies queries with the one and keys with the other.
        """
        total = 0.0
        for score in self.scores:
            distances = 2 * score.reach(packed.longest + slots) + 1
            compared = distances + (2 if score.segment is not None and "segment" in packed.columns else 0)
            inner = score.heads * score.head_width
            total += 2 * distances * score.position.numel() + 2 * inner * compared * lengths.sum()
        for attention in self.disentangled:
            distances, inner = 2 * attention.score.near(packed.longest), attention.heads * attention.head_width
            total += 4 * distances * inner * (attention.output.out_features + lengths.sum())
        return total


def module_sizes(module: nn.Module) -> Sizes:
    """Return the sizes of a module and everything in it."""
    matrices = recurrence = cross = cross_width = scored = scored_width = 0
    widths: Counter[tuple[int, int]] = Counter()
    scores, disentangled = [], []
    others: list[Callable[[Array], float]] = []
    for child in every(module):
        match child:
            case nn.Linear() | Convolution():
                matrices += child.weight.numel()
            case nn.LSTM() | Recurrence():
                recurrence += sum(p.numel() for p in child.parameters() if p.dim() == 2)
            case SpelledEmbeddings():
                matrices += child.filter_weights  # as if no word occurred twice
            case LSHAttention():
                others.append(child.operations)
            case Attention() if child.attend is not None:
                sizes = {"heads": child.heads, "head_width": child.head_width, "pattern": child.pattern}
                others.append(partial(child.attend.operations, **sizes))  # type: ignore[arg-type]
            case Attention() | GlobalAttention() | ScoredAttention() | BlockSparseAttention():
                widths[child.pattern.reach or (-1, -1)] += child.heads * child.head_width
                if isinstance(child, ScoredAttention):
                    scored += child.key_value.weight.numel()
                    scored_width += child.heads * child.head_width
                    scores += [child.score] if isinstance(child.score, TransformerXL) else []
                if isinstance(child, GlobalAttention):  # without global tokens, as in most objectives
                    matrices -= child.global_qkv.weight.numel()
            case DisentangledAttention():
                widths[-1, -1] += child.heads * child.head_width
                disentangled.append(child)
            case CrossAttention():
                cross += child.key_value.weight.numel()
                cross_width += child.heads * child.head_width
    return Sizes(
        matrices, recurrence, dict(widths), cross, cross_width, scored, scored_width, scores, disentangled, others
    )


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a head that determine its FLOPs."""

    weights: int  # used once per target
    encoders: list[Sizes]  # that read all tokens

    def flops(self, targets: float, lengths: Array) -> float:
        """Return the FLOPs of the head for this number of targets."""
        if not targets:
            return 0.0
        inside = sum(2 * sizes.matrices * lengths.sum() + sizes.attention(lengths) for sizes in self.encoders)
        return float(2 * self.weights * targets + inside)


def head_sizes(part: nn.Module, tied: int, without: Sequence[str] = ()) -> HeadSizes:
    """Return the sizes of a part of a head, except for the children named in `without`.

    `tied` is the number of weights of the token embedding, which a vocabulary head multiplies with.
    """
    if isinstance(part, Encoder):
        return HeadSizes(0, [module_sizes(part)])
    if isinstance(part, AdaptiveHead):
        return HeadSizes(part.weights, [])
    own = part.weight.numel() if isinstance(part, nn.Linear) else tied if isinstance(part, VocabularyHead) else 0
    children = [head_sizes(child, tied) for name, child in part.named_children() if name not in without]
    return HeadSizes(
        own + sum(child.weights for child in children), [sizes for child in children for sizes in child.encoders]
    )


def every(module: nn.Module) -> Iterator[nn.Module]:
    """Yield all modules of a module; layers that run at several depths are repeated."""
    for child in module.modules():
        yield child
        if isinstance(child, Encoder):
            for layer, times in Counter(child.stack).items():
                for _ in range(times - 1):
                    yield from layer.modules()


def pairs(lengths: Array, reach: tuple[int, int]) -> Array:
    """Return, per sequence, the number of query-key pairs if each token sees `reach` tokens back and ahead.

    >>> pairs(np.array([5.0]), (1, 1)).tolist()  # 2 + 3 + 3 + 3 + 2
    [13.0]
    """
    back, ahead = reach
    if back < 0 or ahead < 0:  # unlimited on one side
        return lengths**2
    seen = lengths.copy()
    for limit in (back, ahead):
        near = np.minimum(lengths - 1, limit)  # tokens that see fewer than the limit on this side
        seen += near * (near + 1) / 2 + (lengths - 1 - near) * near
    return np.asarray(seen)


def _lengths(batch: Batch, side: int) -> Array:
    """Return the lengths of the real sequences of one side of a batch."""
    if batch.lengths:
        return batch.lengths[side].astype(np.float64)
    packed = batch.packed[side]
    assert packed.host_offsets is not None
    return np.diff(packed.host_offsets[: len(batch.rows) + 1]).astype(np.float64)
