"""LSH attention (Kitaev et al., 2020, arXiv:2001.04451): tokens look at those that a hash puts close to them.

Queries and keys are the same vectors. A round of hashing rotates them at random; the axis that a vector is nearest to is its
bucket (Andoni et al., 2015, arXiv:1509.02897). Sorted by bucket, the tokens are cut into chunks that see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.chunked import attend_chunks, pairs_in_chunks
from pretune.nn.attention.multi_head import Flow
from pretune.nn.attention.packed_layout import Side
from pretune.nn.attention.patterns import Pattern, full, visible
from pretune.nn.dropout import Noise
from pretune.nn.linear import Linear

Array = np.ndarray[Any, np.dtype[Any]]


class LSHAttention(nn.Module):
    """Self-attention in chunks of tokens of like hash, whatever their places; to itself a token looks last."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        size: int,
        before: int,
        buckets: Sequence[int],
        rounds: int = 1,
        pattern: Pattern = full,
        rotations: nn.Module | None = None,
        bias: bool = False,
    ) -> None:
        """`size` and `before` are those of chunks. `buckets` is how many there are, an even number or several whose product
        it is. `rotations` gives normal numbers of a shape at a depth."""
        super().__init__()
        self.heads, self.head_width, self.pattern = heads, head_width, pattern
        self.size, self.before, self.buckets, self.rounds = size, before, tuple(buckets), rounds
        self.rotations = rotations if rotations is not None else Noise()
        inner = heads * head_width
        self.key_value = Linear(width, 2 * inner, bias, stacked=2)  # its keys are its queries too
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, width) → (n, width)."""
        both, v = self.key_value(x).view(-1, 2, self.heads, self.head_width).unbind(1)
        mixed = attend_chunks(
            both,
            F.rms_norm(both, (self.head_width,), eps=1e-6),
            v,
            flow.layout,
            visible(self.pattern, flow.pattern),
            size=self.size,
            before=self.before,
            order=self.order(both, flow),
            self_last=True,
        )
        return self.output(mixed.flatten(1))

    @torch.no_grad()
    def order(self, vectors: Tensor, flow: Flow) -> Tensor:
        """The tokens by bucket, (heads, rounds, n), found once a forward: who computes this layer again gets the same."""
        name = ("order", flow.depth)
        if name not in flow.layout.cache:
            shape = (self.heads, self.head_width, self.rounds, sum(self.buckets) // 2)
            rotations = self.rotations(shape, flow.depth, vectors.device).to(vectors.dtype)
            flow.layout.cache[name] = sort_by_bucket(vectors, rotations, self.buckets, flow.layout.queries)
        return flow.layout.cache[name]  # type: ignore[no-any-return]

    def operations(self, lengths: Array) -> float:
        """Rotating, queries times keys and weights times values, in all rounds."""
        inner, rotated = self.heads * self.head_width, sum(self.buckets) // 2
        pairs = pairs_in_chunks(lengths, self.size, self.before).sum()
        return float(self.rounds * inner * (2 * rotated * lengths.sum() + 4 * pairs))


def sort_by_bucket(vectors: Tensor, rotations: Tensor, buckets: Sequence[int], side: Side) -> Tensor:
    """(n, heads, d) vectors and (heads, d, rounds, Σ buckets / 2) rotations → (heads, rounds, n) tokens in order.

    The tokens of a sequence stay together; those of a bucket stay in the order of the text.
    """
    rotated = torch.einsum("nhd,hdrb->hrnb", vectors, rotations)
    key = side.sequence.long().expand(rotated.shape[:-1])  # (heads, rounds, n)
    key = key * prod(buckets)
    step = 1
    for part, count in zip(torch.split(rotated, [count // 2 for count in buckets], -1), buckets, strict=True):
        key = key + step * torch.cat([part, -part], -1).argmax(-1)
        step *= count
    return key.argsort(dim=-1, stable=True)
