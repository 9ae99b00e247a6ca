"""Multi-head attention layers: self-attention, cross-attention, and self-attention with global tokens or relative positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.patterns import Pattern, effective_pattern, full
from pretune.nn.attention.query_key_layout import AttentionLayout, layout_at
from pretune.nn.attention.scaled_dot_product import KERNEL_HEAD_WIDTHS, ScoreMod, attend, attend_globally, attend_self
from pretune.nn.attention.score_mods import ScoreModBuilder, ValueTerm
from pretune.nn.embedding.positional_encoding import RotaryPositions
from pretune.nn.initialization import InitializationScheme, ResidualBranch
from pretune.nn.kernels import supports_custom_kernels
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.nn.saved_activations import SavedActivations
from pretune.nn.structured_pruning import PrunableHeads
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError


@dataclass
class AttentionContext:
    """What a Transformer layer needs besides its input: layout, pattern, encoder states, and key-value cache."""

    layout: AttentionLayout
    pattern: Pattern | None = None  # that of the batch
    depth: int = 0  # number of layers before this one
    key_states: Tensor | None = None  # (m, width) states of the keys, if they are not those of the queries
    source: Tensor | None = None  # (m, width) states of an encoder
    source_layout: AttentionLayout | None = None
    score_mod: ScoreMod | None = None  # score modification of the whole stack, for layers without one (T5)
    distances: Tensor | None = None  # (distances, width) relative position embeddings of the whole stack (DeBERTa)
    cache: KVCache | None = None  # key-value cache; the keys of the layout are then those of the cache
    at: Tensor | None = None  # (m,) indices of the only tokens whose output is needed; None: all are needed


@dataclass
class LogitInputs:
    """The inputs of the attention logits of a layer: queries, keys, pattern, and score modification."""

    q: Tensor  # (n, heads, d)
    k: Tensor  # (m, heads, d)
    pattern: Pattern
    score: ScoreMod | None = None
    scale: float | None = None  # None: 1 / √d


class ShowsLogits(ABC):
    """The base class of self-attention layers whose attention weights can be computed apart from their output."""

    @abstractmethod
    def logit_inputs(self, x: Tensor, context: AttentionContext) -> LogitInputs | None:
        """Return what determines the attention logits of hidden states x, or None if this layer computes no logits."""


class AttentionFunction(Protocol):
    """The interface of functions that replace softmax attention in `SelfAttention`, such as approximations of it."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern) -> Tensor:
        """Return the attention output, (n, heads, d), of the queries, keys and values of n tokens, (n, heads, d) each.

        Tokens attend within the sequences of `layout`, as far as `pattern` allows.
        """

    def operations(self, lengths: Array, heads: int, head_width: int, pattern: Pattern) -> float:
        """Return the FLOPs of attention over sequences of the given lengths."""


def head_width_of(width: int, heads: int) -> int:
    """Return the width of each attention head, or raise an error if the number of heads does not divide `width`.

    >>> head_width_of(768, 12)
    64
    """
    if width % heads:
        raise PretuneError(
            f"a width of {width} cannot be divided evenly among {heads} attention heads; choose a multiple of {heads}"
        )
    return width // heads


class SelfAttention(PrunableHeads, ShowsLogits):
    """Multi-head self-attention with one weight matrix for queries, keys and values."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        pattern: Pattern = full,
        rotary: RotaryPositions | None = None,
        norm: nn.Module | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        attend: AttentionFunction | None = None,
    ) -> None:
        """Build multi-head self-attention.

        `norm` normalizes queries and keys (QK-norm), `rotary` rotates them, and `attend` replaces softmax attention. A
        layer with `attend` supports neither dropout of attention weights nor a key-value cache.
        """
        super().__init__()
        self.heads, self.head_width = heads, head_width or head_width_of(width, heads)
        self.pattern, self.rotary, self.norm, self.dropout = pattern, rotary, norm, dropout
        self.attend = attend
        self.qkv = Linear(width, 3 * heads * self.head_width, bias, stacked=3)
        self.output = Linear(heads * self.head_width, width, bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to n packed tokens within the sequences of `context.layout`: (n, width) → (n, width).

        If `context.at` is set, only its m tokens are queries, and the result is (m, width).
        """
        qkv = self.project(x, context)
        dropout, pattern = self.dropout if self.training else 0.0, effective_pattern(self.pattern, context.pattern)
        if self.attend is not None:
            q, k, v = qkv.unbind(1)
            mixed = self.attend(q, k, v, context.layout, pattern)
            mixed = mixed if context.at is None else mixed[context.at]
        elif context.at is not None:
            q, k, v = qkv.unbind(1)
            mixed = attend(q[context.at], k, v, layout_at(context.layout, context.at), pattern, dropout=dropout)
        elif context.cache is None:
            mixed = attend_self(qkv, context.layout, pattern, dropout=dropout)
        else:
            q, k, v = qkv.unbind(1)
            k, v = context.cache.extend(k, v)
            mixed = attend(q, k, v, context.layout, pattern, dropout=dropout)
        return self.output(mixed.flatten(1))

    def project(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Return queries, keys and values of hidden states, (n, 3, heads, d), after QK-norm and rotary embeddings."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        if self.norm is None and self.rotary is None:
            return qkv
        return self.normalize_and_rotate(qkv, context.layout)

    def logit_inputs(self, x: Tensor, context: AttentionContext) -> LogitInputs | None:
        """Return the queries, keys and pattern that determine the logits; None if `attend` replaces the softmax."""
        q, k, _ = self.project(x, context).unbind(1)
        return LogitInputs(q, k, effective_pattern(self.pattern, context.pattern)) if self.attend is None else None

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        if self.attend is None:
            sizes.add_attention(self.pattern, self.heads * self.head_width)
        else:
            operations, heads, head_width = self.attend.operations, self.heads, self.head_width
            sizes.others.append(partial(operations, heads=heads, head_width=head_width, pattern=self.pattern))

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.qkv)
        saved.width += self.output.in_features
        if self.norm is not None:  # of queries and keys
            saved.width += 2 * self.heads * self.head_width
        if self.attend is not None:
            saved.add(self.attend)

    def unit_projections(self) -> list[Linear]:
        """Return the projection to queries, keys and values, whose rows are removed when heads are pruned."""
        return [self.qkv]

    def normalize_and_rotate(self, qkv: Tensor, layout: AttentionLayout) -> Tensor:
        """Apply QK-norm and rotary embeddings, if configured, to the queries and keys of `qkv`, (n, 3, heads, d)."""
        angles = None if self.rotary is None else rotary_angles(self.rotary, layout)
        in_kernel = supports_custom_kernels(qkv) and self.head_width in KERNEL_HEAD_WIDTHS
        if self.norm is None and angles is not None and in_kernel:
            from pretune.nn.kernels.rotary import rotate

            return rotate(qkv, *angles, 1.0)
        q, k, v = qkv.unbind(1)
        if self.norm is not None:
            q, k = self.norm(q), self.norm(k)
        if self.rotary is not None:
            q, k = self.rotary(q, angles), self.rotary(k, angles)
        return torch.stack([q, k, v], 1)


def rotary_angles(rotary: RotaryPositions, layout: AttentionLayout) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary angles of the queries, cached in `layout` for the next layers."""
    name = ("angles", rotary.head_width, rotary.base)
    if name not in layout.cache:
        layout.cache[name] = rotary.angles(layout.queries.columns["position"])
    return layout.cache[name]  # type: ignore[no-any-return]


class GlobalAttention(ResidualBranch, ShowsLogits):
    """Self-attention with global tokens (Longformer), which are marked by 1 in the per-token column `global`.

    Global tokens attend to all tokens, with separate projections. Other tokens attend to global tokens and to the
    tokens that the pattern allows.
    """

    def __init__(self, width: int, heads: int, *, pattern: Pattern = full, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width_of(width, heads)
        self.pattern, self.dropout = pattern, dropout
        self.qkv = Linear(width, 3 * width, stacked=3)
        self.global_qkv = Linear(width, 3 * width, stacked=3)
        self.output = Linear(width, width)
        self.has_unused_parameters = True  # some of its parameters are unused in some batches

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to n packed tokens within the sequences of `context.layout`: (n, width) → (n, width)."""
        dropout = self.dropout if self.training else 0.0
        if "global" not in context.layout.queries.columns:
            qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
            pattern = effective_pattern(self.pattern, context.pattern)
            return self.output(attend_self(qkv, context.layout, pattern, dropout=dropout).flatten(1))
        qkv, global_qkv = (
            project(x).view(-1, 3, self.heads, self.head_width) for project in (self.qkv, self.global_qkv)
        )
        mixed = attend_globally(qkv, global_qkv, context.layout, self.pattern, context.pattern, dropout=dropout)
        return self.output(mixed.flatten(1))

    def logit_inputs(self, x: Tensor, context: AttentionContext) -> LogitInputs | None:
        """Return the queries, keys and pattern that determine the logits; None if the batch has global tokens.

        Global tokens have logits of their own, from separate projections.
        """
        if "global" in context.layout.queries.columns:
            return None
        q, k, _ = self.qkv(x).view(-1, 3, self.heads, self.head_width).unbind(1)
        return LogitInputs(q, k, effective_pattern(self.pattern, context.pattern))

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.add_attention(self.pattern, self.heads * self.head_width)
        sizes.matrices -= self.global_qkv.weight.numel()  # as without global tokens, which most objectives do not have

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`, as without global tokens."""
        saved.add(self.qkv)
        saved.width += self.output.in_features


class RelativeAttention(ResidualBranch, ShowsLogits):
    """Self-attention with relative positions (as a score modification) and memory: T5, Transformer-XL, XLNet."""

    def __init__(
        self,
        width: int,
        heads: int,
        score: ScoreModBuilder | None = None,
        *,
        head_width: int | None = None,
        pattern: Pattern = full,
        content_bias: bool = False,
        scale: float | None = None,
        bias: bool = True,
        query_bias: bool = True,
        dropout: float = 0.0,
        stages: int | None = None,
        values: ValueTerm | None = None,
    ) -> None:
        """Build self-attention whose logits `score` modifies (None: the score modification in the context of a call).

        With `content_bias`, a learned vector per head is added to the queries; without `query_bias`, the projection to
        queries has no bias, even if other projections have one (Funnel); `scale` multiplies the logits (None: 1 / √d);
        `stages` is the number of key blocks that the flex kernel prefetches (see `attend`); `values` adds relative
        positions to the values (NEZHA), for which attention is always computed by the dense implementation.
        """
        super().__init__()
        self.heads, self.head_width = heads, head_width or head_width_of(width, heads)
        self.pattern, self.scale, self.dropout, self.score = pattern, scale, dropout, score
        self.stages, self.values = stages, values
        inner = heads * self.head_width
        self.query = Linear(width, inner, bias and query_bias)
        self.key_value = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.head_width)) if content_bias else None

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention: (n, width) → (n, width).

        Keys and values are computed from `context.key_states`, if set (a memory followed by x), otherwise from x.
        """
        q, k, v, score_mod = self.project(x, context)
        pattern = effective_pattern(self.pattern, context.pattern)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(
            q,
            k,
            v,
            context.layout,
            pattern,
            score_mod,
            self.scale,
            dropout=dropout,
            stages=self.stages,
            values=self.values,
        )
        return self.output(mixed.flatten(1))

    def project(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor, ScoreMod | None]:
        """Return queries, keys and values of hidden states, (n, heads, d) each, and the score modification, if any."""
        q = self.query(x).view(-1, self.heads, self.head_width)
        key_states = x if context.key_states is None else context.key_states
        k, v = self.key_value(key_states).view(-1, 2, self.heads, self.head_width).unbind(1)
        if context.cache is not None:
            k, v = context.cache.extend(k, v)
        score_mod = context.score_mod if self.score is None else self.score(q, context.layout)
        if self.content_bias is not None:
            q = q + self.content_bias.to(q.dtype)
        return q, k, v, score_mod

    def logit_inputs(self, x: Tensor, context: AttentionContext) -> LogitInputs:
        """Return the queries, keys, pattern and score modification that give the logits of hidden states x."""
        q, k, _, score_mod = self.project(x, context)
        return LogitInputs(q, k, effective_pattern(self.pattern, context.pattern), score_mod, self.scale)

    def refine_parameters(self, scheme: InitializationScheme) -> None:
        """Let an initialization scheme rescale the output matrix and, if logits are not scaled, the query matrix."""
        super().refine_parameters(scheme)
        if self.scale == 1.0:
            scheme.refine_unscaled_query(self.query.weight, self.head_width)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.add_attention(self.pattern, self.heads * self.head_width)
        sizes.scored += self.key_value.weight.numel()
        sizes.scored_width += self.heads * self.head_width
        for part in (self.score, self.values):
            if part is not None:
                sizes.relative.append(part.operations)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.query)
        saved.width += self.key_value.out_features + self.output.in_features
        for part in (self.score, self.values):
            if part is not None:
                saved.add(part)


class CrossAttention(PrunableHeads):
    """Attention from the states of a decoder to those of an encoder, or from one stream of a network to another."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        source_width: int | None = None,
    ) -> None:
        """Build cross-attention; `source_width` is the width of the encoder states if it is not `width`."""
        super().__init__()
        self.heads, self.head_width = heads, head_width or head_width_of(width, heads)
        self.scale, self.dropout = scale, dropout
        inner = heads * self.head_width
        self.query = Linear(width, inner, bias)
        self.key_value = Linear(source_width or width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Attend from n states x to m encoder states, `context.source`, (m, source width): (n, width) → (n, width)."""
        assert context.source_layout is not None
        q = self.query(x).view(-1, self.heads, self.head_width)
        project = partial(self.keys_and_values, context.source)
        k, v = project() if context.cache is None else context.cache.source_keys_values(project)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, context.source_layout, full, scale=self.scale, dropout=dropout)
        return self.output(mixed.flatten(1))

    def keys_and_values(self, source: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of m encoder states: (m, source width) → (m, heads, head width) each."""
        assert source is not None
        k, v = self.key_value(source).view(-1, 2, self.heads, self.head_width).unbind(1)
        return k, v

    def refine_parameters(self, scheme: InitializationScheme) -> None:
        """Let an initialization scheme rescale the output matrix and, if logits are not scaled, the query matrix."""
        super().refine_parameters(scheme)
        if self.scale == 1.0:
            scheme.refine_unscaled_query(self.query.weight, self.head_width)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.cross += self.key_value.weight.numel()
        sizes.cross_width += self.heads * self.head_width

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.query)
        # The states of the source, which keys and values read, are kept once for all layers.
        saved.width += self.key_value.out_features + self.output.in_features

    def unit_projections(self) -> list[Linear]:
        """Return the projections to queries and to keys and values, whose rows are removed when heads are pruned."""
        return [self.query, self.key_value]
