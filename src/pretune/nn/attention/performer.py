"""FAVOR+ (Choromanski et al., 2020, arXiv:2009.14794): softmax attention by positive orthogonal random features.

    exp(q · k) = E φ(q) · φ(k),    φ(x) = exp(W x − |x|² / 2),    rows of W normal, orthogonal to each other

so that Σ exp(q · k) v = φ(q) · Σ φ(k) ⊗ v: the sum over keys and values is computed once for all queries, chunk by
chunk; causal attention within a chunk is computed pair by pair. Time and memory grow linearly with the length.
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
        """Draw `features` random features, which all heads share.

        `size` is the number of tokens per chunk in which attention is computed.
        """
        super().__init__()
        self.size = size
        self.register_buffer("features", orthogonal_features(features, head_width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern) -> Tensor:
        """Approximate softmax attention with a full or causal `pattern`; q, k, v and the result are (n, heads, d)."""
        if pattern.reach not in (full.reach, causal.reach):
            raise PretuneError(
                f"attention by random features supports full and causal patterns, but not {pattern.name!r}; "
                "choose a model with another kind of attention"
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
        """Return the logarithms of the random features of x · `root`: (n, heads, d) → (n, heads, features).

        x are queries or keys, and `root` is the square root of the scale of the logits, 1 / √d.
        """
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
    """Return normally distributed random vectors, (count, width); in each group of `width`, they are orthogonal.

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
    """Return, for each token and head, the maximum of x over the features and tokens of its sequence: (n, heads, 1).

    x is (n, heads, features); `side` has the sequence boundaries.
    """
    sequence = side.sequence.long()
    rows = x.amax(-1)  # (n, heads)
    found = rows.new_full((side.offsets.shape[0] - 1, rows.shape[1]), -torch.inf)
    found = found.scatter_reduce(0, sequence[:, None].expand_as(rows), rows, "amax")
    return found[sequence][..., None]


def to_chunks(x: Tensor, chunks: Chunks) -> Tensor:
    """Arrange n tokens in chunks of `size`, with 0 in empty slots: (n, heads, d) → (chunks, heads, size, d)."""
    rows = x.new_zeros(chunks.count * chunks.size, *x.shape[1:]).index_copy(0, chunks.slots, x)
    return rows.view(chunks.count, chunks.size, *x.shape[1:]).transpose(1, 2)


def chunk_cumsum(x: Tensor, chunks: Chunks) -> Tensor:
    """Return the cumulative sums of x, (chunks, …), over the chunks of each sequence.

    Each sequence is summed on its own, so that rounding errors of other sequences do not enter.
    """
    step = 1
    shape = (-1, *(1 for _ in x.shape[1:]))
    while step < chunks.max_per_sequence:
        x = x + torch.where((chunks.index >= step).view(shape), x.roll(step, 0), 0.0)
        step *= 2
    return x
