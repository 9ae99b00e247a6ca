"""Multi-head attention modules around `attend`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.functional import TILE_WIDTHS, Bend, attend, attend_self
from pretune.nn.attention.kv_cache import Cache
from pretune.nn.attention.packed_layout import Layout
from pretune.nn.attention.patterns import Pattern, full, global_keys, global_queries, visible
from pretune.nn.attention.score_mods import Score
from pretune.nn.kernels import ours
from pretune.nn.linear import Linear
from pretune.nn.positional_encoding import Rotary
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Flow:
    """What runs through a stack beside the states: who attends to whom, and to what else."""

    layout: Layout
    pattern: Pattern | None = None  # the batch's
    depth: int = 0  # how many layers came before this one
    context: Tensor | None = None  # (m, width) rows behind the layout's keys, when they are not the queries' own rows
    source: Tensor | None = None  # (m, width) states of an encoder
    source_layout: Layout | None = None
    bend: Bend | None = None  # by a score of the whole stack, for layers without one of their own (T5)
    distances: Tensor | None = None  # (distances, width) vectors of the whole stack (DeBERTa)
    cache: Cache | None = None  # keys and values of the tokens before, which the layout's keys then are


class Attend(Protocol):
    """A function of `attend`'s signature that is not softmax over a pattern, or not over all of it."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        pattern: Pattern,
        score: Bend | None = None,
        scale: float | None = None,
    ) -> Tensor: ...

    def operations(self, lengths: Array, heads: int, head_width: int, pattern: Pattern) -> float:
        """Floating-point operations of sequences of such lengths."""


def split_heads(width: int, heads: int) -> int:
    """Return the width of each head; refuse a width that heads do not divide.

    >>> split_heads(768, 12)
    64
    """
    if width % heads:
        raise PretuneError(f"a width of {width} cannot be divided evenly among {heads} attention heads")
    return width // heads


class Attention(nn.Module):
    """Self-attention with queries, keys and values from one matrix."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        pattern: Pattern = full,
        rotary: Rotary | None = None,
        norm: nn.Module | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        attend: Attend | None = None,
    ) -> None:
        """`norm` normalizes queries and keys of each head (QK-norm); `attend` takes the place of the function of that name,
        but for dropout and caches."""
        super().__init__()
        self.heads, self.head_width = heads, head_width or split_heads(width, heads)
        self.pattern, self.rotary, self.norm, self.dropout = pattern, rotary, norm, dropout
        self.attend = attend
        self.qkv = Linear(width, 3 * heads * self.head_width, bias, stacked=3)
        self.output = Linear(heads * self.head_width, width, bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) → (n, width)."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        if self.norm is not None or self.rotary is not None:
            qkv = self.turn(qkv, flow.layout)
        dropout, pattern = self.dropout if self.training else 0.0, visible(self.pattern, flow.pattern)
        if self.attend is not None:
            q, k, v = qkv.unbind(1)
            mixed = self.attend(q, k, v, flow.layout, pattern)
        elif flow.cache is None:
            mixed = attend_self(qkv, flow.layout, pattern, dropout=dropout)
        else:
            q, k, v = qkv.unbind(1)
            k, v = flow.cache.extend(k, v)
            mixed = attend(q, k, v, flow.layout, pattern, dropout=dropout)
        return self.output(mixed.flatten(1))

    def turn(self, qkv: Tensor, layout: Layout) -> Tensor:
        """Queries and keys normalized and rotated; values as they are: (n, 3, heads, d)."""
        angles = None if self.rotary is None else rotary_angles(self.rotary, layout)
        if self.norm is None and angles is not None and ours(qkv) and self.head_width in TILE_WIDTHS:
            from pretune.nn.kernels.rotary import rotate

            turned: Tensor = rotate(qkv, *angles, 1.0)
            return turned
        q, k, v = qkv.unbind(1)
        if self.norm is not None:
            q, k = self.norm(q), self.norm(k)
        if self.rotary is not None:
            q, k = self.rotary(q, angles), self.rotary(k, angles)
        return torch.stack([q, k, v], 1)


def rotary_angles(rotary: Rotary, layout: Layout) -> tuple[Tensor, Tensor]:
    """Those of the queries' positions, made once for all layers that have the same."""
    name = ("angles", rotary.head_width, rotary.base)
    if name not in layout.cache:
        layout.cache[name] = rotary.angles(layout.queries.columns["position"])
    return layout.cache[name]  # type: ignore[no-any-return]


class GlobalAttention(nn.Module):
    """Self-attention with tokens that see all and are seen by all, where column `global` is 1 (Longformer).

    All others see what the pattern allows, and these tokens. Those that see all do so by projections of their own.
    """

    def __init__(self, width: int, heads: int, *, pattern: Pattern = full, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.head_width = heads, split_heads(width, heads)
        self.pattern, self.dropout = pattern, dropout
        self.qkv = Linear(width, 3 * width, stacked=3)
        self.global_qkv = Linear(width, 3 * width, stacked=3)
        self.output = Linear(width, width)
        self.idle = True  # some of its parameters are not for all batches

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) → (n, width)."""
        chosen = flow.layout.queries.columns.get("global")
        if chosen is None:
            return self.output(self.mix(self.qkv, x, flow, self.pattern))
        others = self.mix(self.qkv, x, flow, self.pattern | global_keys)
        # Of all rows, which keeps shapes what they are; those of others see nothing.
        own = self.mix(self.global_qkv, x, flow, global_queries)
        return self.output(torch.where(chosen[:, None] > 0, own, others))

    def mix(self, project: Linear, x: Tensor, flow: Flow, pattern: Pattern) -> Tensor:
        """(n, width) → (n, heads · d)."""
        qkv = project(x).view(-1, 3, self.heads, self.head_width)
        dropout = self.dropout if self.training else 0.0
        return attend_self(qkv, flow.layout, visible(pattern, flow.pattern), dropout=dropout).flatten(1)


class ScoredAttention(nn.Module):
    """Self-attention, over memory too, with a score: T5's, Transformer-XL's, XLNet's."""

    def __init__(
        self,
        width: int,
        heads: int,
        score: Score | None = None,
        *,
        head_width: int | None = None,
        pattern: Pattern = full,
        content_bias: bool = False,
        scale: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        stages: int | None = None,
    ) -> None:
        """Without a score, that of the stack holds; `content_bias` is added to the queries for q·k alone, as
        Transformer-XL has it; `stages` is that of `attend`."""
        super().__init__()
        self.heads, self.head_width = heads, head_width or split_heads(width, heads)
        self.pattern, self.scale, self.dropout, self.score = pattern, scale, dropout, score
        self.stages = stages
        inner = heads * self.head_width
        self.query = Linear(width, inner, bias)
        self.key_value = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.head_width)) if content_bias else None

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) → (n, width); keys and values come from the flow's context where it has one."""
        q = self.query(x).view(-1, self.heads, self.head_width)
        rows = x if flow.context is None else flow.context
        k, v = self.key_value(rows).view(-1, 2, self.heads, self.head_width).unbind(1)
        if flow.cache is not None:
            k, v = flow.cache.extend(k, v)
        bend = flow.bend if self.score is None else self.score(q, flow.layout)
        if self.content_bias is not None:
            q = q + self.content_bias.to(q.dtype)
        pattern = visible(self.pattern, flow.pattern)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, flow.layout, pattern, bend, self.scale, dropout=dropout, stages=self.stages)
        return self.output(mixed.flatten(1))


class CrossAttention(nn.Module):
    """Attention from a decoder's states to an encoder's."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width or split_heads(width, heads)
        self.scale, self.dropout = scale, dropout
        inner = heads * self.head_width
        self.query = Linear(width, inner, bias)
        self.key_value = Linear(width, 2 * inner, bias, stacked=2)
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) looks at the flow's source (m, width)."""
        assert flow.source_layout is not None
        q = self.query(x).view(-1, self.heads, self.head_width)
        make = partial(self.keys_and_values, flow.source)
        k, v = make() if flow.cache is None else flow.cache.once(make)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, flow.source_layout, full, scale=self.scale, dropout=dropout)
        return self.output(mixed.flatten(1))

    def keys_and_values(self, source: Tensor | None) -> tuple[Tensor, Tensor]:
        """(m, heads, d) each."""
        assert source is not None
        k, v = self.key_value(source).view(-1, 2, self.heads, self.head_width).unbind(1)
        return k, v
