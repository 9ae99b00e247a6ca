"""FAVOR+ (Choromanski et al., 2020, arXiv:2009.14794): softmax attention by positive orthogonal random features.

    exp(q · k) = E φ(q) · φ(k),    φ(x) = exp(W x − |x|² / 2),    rows of W normal, orthogonal to each other

so that Σ exp(q · k) v = φ(q) · Σ φ(k) ⊗ v: keys and values are summed once for all queries. Sums are computed chunk by chunk;
causal attention within a chunk is computed pair by pair. Time and memory grow linearly with the length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.attention.chunked import Chunks, split_into_chunks
from pretune.nn.attention.patterns import Pattern, causal, full
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenLayout
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

SIZE = 64  # tokens per chunk
SMALLEST = 1e-20  # lower bound on a sum of weights, in case all of them vanish


class RandomFeatureAttention(nn.Module):
    """Performer's linear approximation of softmax attention by random features, drawn once and saved with the model."""

    features: Tensor

    def __init__(self, head_width: int, features: int, size: int = SIZE) -> None:
        """Draw `features` random features, shared by all heads; attention is computed in chunks of `size` tokens."""
        super().__init__()
        self.size = size
        self.register_buffer("features", orthogonal_features(features, head_width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern) -> Tensor:
        """Approximate full or causal softmax attention of q, k and v, (n, heads, d) each: return (n, heads, d)."""
        if pattern.reach not in (full.reach, causal.reach):
            raise PretuneError(
                f"attention by random features supports full and causal patterns, but not {pattern.name!r}; "
                "choose another attention"
            )
        chunks, side = split_into_chunks(layout, self.size), layout.queries
        root = (q.shape[-1] ** -0.5) ** 0.5
        queries, keys = self.exponents(q, root), self.exponents(k, root)
        # Factors common to all weights of a query or of a sequence cancel out, so the largest can be made 1.
        queries = (queries - queries.detach().amax(-1, keepdim=True)).exp()
        keys = (keys - sequence_max(keys.detach(), side)).exp()
        values = torch.cat([v, torch.ones_like(v[..., :1])], -1).float()  # the last column sums weights
        queries, keys, values = (to_chunks(x, chunks) for x in (queries, keys, values))  # (chunks, heads, size, …)
        sums = chunk_cumsum(keys.transpose(-2, -1) @ values, chunks)  # (chunks, heads, features, d + 1)
        if pattern.reach == full.reach:
            mixed = queries @ sums[chunks.last]
        else:
            inside = (queries @ keys.transpose(-2, -1)).tril() @ values
            follows = (chunks.index > 0)[:, None, None, None]
            mixed = inside + queries @ torch.where(follows, sums.roll(1, 0), 0.0)
        mixed = mixed.transpose(1, 2).flatten(0, 1)[chunks.slots]
        return (mixed[..., :-1] / mixed[..., -1:].clamp(min=SMALLEST)).to(v.dtype)

    def exponents(self, x: Tensor, root: float) -> Tensor:
        """Return the log random features of `root` · x, for queries or keys x: (n, heads, d) → (n, heads, features)."""
        x = x.float() * root
        return x @ self.features.t() - x.square().sum(-1, keepdim=True) / 2

    def operations(self, lengths: Array, heads: int, head_width: int, pattern: Pattern) -> float:
        """Return the FLOPs of Performer attention over sequences of the given lengths."""
        features, columns = len(self.features), head_width + 1
        per_token = 4 * features * head_width + 4 * features * columns
        if pattern.reach == causal.reach:
            per_token += 2 * self.size * (features + columns)
        return float(heads * per_token * lengths.sum())


def orthogonal_features(count: int, width: int) -> Tensor:
    """Return `count` normally distributed vectors, (count, width); each group of `width` vectors is orthogonal.

    >>> rows = orthogonal_features(6, 4)
    >>> bool((rows[:4] @ rows[:4].T).fill_diagonal_(0).abs().max() < 1e-5)
    True
    """
    if torch.get_default_device().type == "meta":  # only shapes are needed
        return torch.empty(count, width)
    blocks = []
    for _ in range(-(-count // width)):
        directions, triangle = torch.linalg.qr(torch.randn(width, width))
        blocks.append(directions * triangle.diagonal().sign())  # for a uniform distribution (Mezzadri, 2007)
    lengths = torch.randn(count, width).norm(dim=1, keepdim=True)  # those of normally distributed vectors
    return torch.cat(blocks)[:count] * lengths


def sequence_max(x: Tensor, side: TokenLayout) -> Tensor:
    """Return, for each token, the maximum of x over features and tokens of its sequence in `side`: (n, heads, 1)."""
    sequence = side.sequence.long()
    rows = x.amax(-1)  # (n, heads)
    found = rows.new_full((side.offsets.shape[0] - 1, rows.shape[1]), -torch.inf)
    found = found.scatter_reduce(0, sequence[:, None].expand_as(rows), rows, "amax")
    return found[sequence][..., None]


def to_chunks(x: Tensor, chunks: Chunks) -> Tensor:
    """Arrange tokens in chunks, with 0 in empty slots: (n, heads, d) → (chunks, heads, size, d)."""
    rows = x.new_zeros(chunks.count * chunks.size, *x.shape[1:]).index_copy(0, chunks.slots, x)
    return rows.view(chunks.count, chunks.size, *x.shape[1:]).transpose(1, 2)


def chunk_cumsum(x: Tensor, chunks: Chunks) -> Tensor:
    """Return the cumulative sum of x, (chunks, …), in each sequence, without rounding errors from other sequences."""
    step = 1
    shape = (-1, *(1 for _ in x.shape[1:]))
    while step < chunks.max_per_sequence:
        x = x + torch.where((chunks.index >= step).view(shape), x.roll(step, 0), 0.0)
        step *= 2
    return x
