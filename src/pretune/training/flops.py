"""Floating-point operations, by formula: a multiply and an add count two, a backward costs two forwards, filler nothing.

For a stack of layers over sequences of lengths n_i: every weight matrix is used once a token, and attention multiplies queries
with keys and weights with values, 2 · 2 · width operations for each pair of tokens (causal attention too, as is the custom; a
window only for the pairs inside it). Tokens that are remembered are keys and values too. Relative positions have a product of
each query with every distance there can be. Heads work on targets alone; an encoder inside a head, on all tokens.

Attention of another kind, in chunks or by random features, says itself what it takes. What is computed again in a backward is not
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
    """One forward of a batch, item by item: matrices, attention, recurrence, and each head."""
    return Flops(root).itemize(batch)


def forward_flops(root: nn.Module, batch: Batch) -> float:
    """One forward of a batch through backbone and heads."""
    return sum(itemize(root, batch).values())


def training_flops(root: nn.Module, batch: Batch) -> float:
    """Forward and backward."""
    return Flops(root).training(batch)


@dataclass
class Flops:
    """The operations of a model's batches. What depends on the model alone is looked up once."""

    root: nn.Module
    sizes: dict[nn.Module, Sizes] = field(default_factory=dict)
    heads: dict[tuple[nn.Module, tuple[str, ...]], HeadSizes] = field(default_factory=dict)

    def training(self, batch: Batch) -> float:
        """Forward and backward."""
        return 3.0 * sum(self.itemize(batch).values())

    def itemize(self, batch: Batch) -> dict[str, float]:
        """One forward, item by item."""
        backbone: Any = self.root.backbone
        sides = [_lengths(batch, side) for side in range(len(batch.packed))]
        if len(sides) == 1 or isinstance(backbone, TwoWays):
            # Of two stacks each may have a text of its own: as many tokens, and half of the matrices for each.
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
        """A head on its targets. A part of it that has a term named after it (rtd's generator) is an item of its own."""
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
    """What the operations of a stack of layers depend on besides the sequences."""

    matrices: int  # weights of all linear maps and convolutions
    recurrence: int  # weights of the gates of all LSTMs
    widths: dict[tuple[int, int], int]  # of all self-attention together, by how far it looks back and ahead
    cross: int  # weights that make keys and values of a source; they are among the matrices
    cross_width: int  # of all attention to a source
    scored: int  # weights that make keys and values of attention that can remember; they are among the matrices
    scored_width: int  # of all such attention
    scores: list[TransformerXL]  # of relative positions
    disentangled: list[DisentangledAttention]
    others: list[Callable[[Array], float]]  # operations of self-attention of another kind, by the lengths

    def attention(self, lengths: Array) -> float:
        """Queries times keys and weights times values, in all self-attention."""
        plain = sum(4 * width * pairs(lengths, reach).sum() for reach, width in self.widths.items())
        return float(plain + sum(operations(lengths) for operations in self.others))

    def memory(self, lengths: Array, slots: int) -> float:
        """Keys and values of so many remembered tokens a sequence, and attention to them."""
        return float(2 * slots * (self.scored * len(lengths) + 2 * self.scored_width * lengths.sum()))

    def positions(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Transformer-XL's scores: vectors of distances, and queries times each of them and each kind of segment.

        DeBERTa's: two vectors of each distance, and queries times the one and keys times the other.
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
    """The sizes of everything below a module."""
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
                matrices += child.filter_weights  # as if no word came twice
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
                if isinstance(child, GlobalAttention):  # without tokens that see all, as most objectives have it
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
    """What the operations of a head depend on besides the batch."""

    weights: int  # used once a target
    encoders: list[Sizes]  # that read all tokens

    def flops(self, targets: float, lengths: Array) -> float:
        """Of so many targets."""
        if not targets:
            return 0.0
        inside = sum(2 * sizes.matrices * lengths.sum() + sizes.attention(lengths) for sizes in self.encoders)
        return float(2 * self.weights * targets + inside)


def head_sizes(part: nn.Module, tied: int, without: Sequence[str] = ()) -> HeadSizes:
    """The sizes of a part of a head, its children `without` some of them included.

    `tied` are the weights of the token embedding, which a way to the vocabulary ends in.
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
    """All modules below one; layers that run at several depths come as often as they run."""
    for child in module.modules():
        yield child
        if isinstance(child, Encoder):
            for layer, times in Counter(child.stack).items():
                for _ in range(times - 1):
                    yield from layer.modules()


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


def _lengths(batch: Batch, side: int) -> Array:
    """Lengths of the real sequences of one side."""
    if batch.lengths:
        return batch.lengths[side].astype(np.float64)
    packed = batch.packed[side]
    assert packed.host_offsets is not None
    return np.diff(packed.host_offsets[: len(batch.rows) + 1]).astype(np.float64)
