"""FAVOR+ (Choromanski et al., 2020, arXiv:2009.14794): softmax attention by positive orthogonal random features.

    exp(q · k) = E φ(q) · φ(k),    φ(x) = exp(W x − |x|² / 2),    rows of W normal, orthogonal to each other

so that Σ exp(q · k) v = φ(q) · Σ φ(k) ⊗ v: keys and values are summed up once, whoever asks. Sums are made chunk by chunk; what a
causal query sees of its own chunk is computed pair by pair. Work and memory grow with the length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.nn.attention.chunked import Chunks, cut
from pretune.nn.attention.functional import Bend
from pretune.nn.attention.packed_layout import Layout, Side
from pretune.nn.attention.patterns import Pattern, causal, full
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]
SIZE = 64  # tokens in a chunk
SMALLEST = 1e-20  # sum of weights, should all of them vanish


class Favor(nn.Module):
    """Attention by random features: for `Attention` in place of `attend`. They are drawn once, and saved with the model."""

    features: Tensor

    def __init__(self, head_width: int, features: int, size: int = SIZE) -> None:
        """More features come closer to softmax; all heads have the same ones."""
        super().__init__()
        self.size = size
        self.register_buffer("features", orthogonal_features(features, head_width))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        pattern: Pattern,
        score: Bend | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """`attend` by approximation, full or causal: (n, heads, d)."""
        if score is not None or pattern.reach not in (full.reach, causal.reach):
            what = "a score" if score is not None else f"the pattern {pattern.name!r}"
            raise PretuneError(f"attention by random features is full or causal; it cannot honor {what}")
        chunks, side = cut(layout, self.size), layout.queries
        root = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
        queries, keys = self.exponents(q, root), self.exponents(k, root)
        # What a query's or a sequence's weights have in common cancels out; so these may be as large as is safe.
        queries = (queries - queries.detach().amax(-1, keepdim=True)).exp()
        keys = (keys - largest(keys.detach(), side)).exp()
        values = torch.cat(
            [v.float(), torch.ones_like(v[..., :1], dtype=torch.float32)], -1
        )  # beside it, what it weighs
        queries, keys, values = (in_slots(x, chunks) for x in (queries, keys, values))  # (chunks, heads, size, …)
        sums = running_sum(keys.transpose(-2, -1) @ values, chunks)  # (chunks, heads, features, d + 1)
        if pattern.reach == full.reach:
            mixed = queries @ sums[chunks.last]
        else:
            inside = (queries @ keys.transpose(-2, -1)).tril() @ values
            follows = (chunks.number > 0)[:, None, None, None]
            mixed = inside + queries @ torch.where(follows, sums.roll(1, 0), 0.0)
        mixed = mixed.transpose(1, 2).flatten(0, 1)[chunks.slots]
        return (mixed[..., :-1] / mixed[..., -1:].clamp(min=SMALLEST)).to(v.dtype)

    def exponents(self, x: Tensor, root: float) -> Tensor:
        """(n, heads, d) → (n, heads, features), fp32: the logarithms of features."""
        x = x.float() * root
        return x @ self.features.t() - x.square().sum(-1, keepdim=True) / 2

    def operations(self, lengths: Array, heads: int, head_width: int, pattern: Pattern) -> float:
        """Features of queries and keys; sums, and queries times sums; for causal ones, pairs inside a chunk."""
        features, beside = len(self.features), head_width + 1
        each = 4 * features * head_width + 4 * features * beside
        if pattern.reach == causal.reach:
            each += 2 * self.size * (features + beside)
        return float(heads * each * lengths.sum())


def orthogonal_features(count: int, width: int) -> Tensor:
    """(count, width) normal vectors, of which `width` at a time are orthogonal.

    >>> rows = orthogonal_features(6, 4)
    >>> bool((rows[:4] @ rows[:4].T).fill_diagonal_(0).abs().max() < 1e-5)
    True
    """
    if torch.get_default_device().type == "meta":  # shapes alone; directions of nothing take their time there
        return torch.empty(count, width)
    blocks = []
    for _ in range(-(-count // width)):
        directions, triangle = torch.linalg.qr(torch.randn(width, width))
        blocks.append(directions * triangle.diagonal().sign())  # so that no direction is likelier (Mezzadri, 2007)
    lengths = torch.randn(count, width).norm(dim=1, keepdim=True)  # as long as normal vectors are
    return torch.cat(blocks)[:count] * lengths


def largest(x: Tensor, side: Side) -> Tensor:
    """(n, heads, features) → (n, heads, 1): the largest of each token's sequence."""
    sequence = side.sequence.long()
    rows = x.amax(-1)  # (n, heads)
    found = rows.new_full((side.offsets.shape[0] - 1, rows.shape[1]), -torch.inf)
    found = found.scatter_reduce(0, sequence[:, None].expand_as(rows), rows, "amax")
    return found[sequence][..., None]


def in_slots(x: Tensor, chunks: Chunks) -> Tensor:
    """(n, heads, d) → (chunks, heads, size, d), 0 in empty slots."""
    rows = x.new_zeros(chunks.count * chunks.size, *x.shape[1:]).index_copy(0, chunks.slots, x)
    return rows.view(chunks.count, chunks.size, *x.shape[1:]).transpose(1, 2)


def running_sum(x: Tensor, chunks: Chunks) -> Tensor:
    """(chunks, …): each with those before it in its sequence. By doubling, so that nothing of another sequence comes in."""
    step = 1
    shape = (-1, *(1 for _ in x.shape[1:]))
    while step < chunks.most:
        x = x + torch.where((chunks.number >= step).view(shape), x.roll(step, 0), 0.0)
        step *= 2
    return x
