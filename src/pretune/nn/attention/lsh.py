"""LSH attention (Kitaev et al., 2020, arXiv:2001.04451): tokens attend to tokens in the same or a neighboring hash bucket.

Queries and keys are the same vectors. A round of hashing multiplies them by a random rotation; the bucket of a vector
is the axis nearest to it (Andoni et al., 2015, arXiv:1509.02897). Sorted by bucket, the tokens are split into chunks
that attend to themselves and to the chunks before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.chunked import attend_chunks, pairs_in_chunks
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import Pattern, effective_pattern, full
from pretune.nn.attention.query_key_layout import TokenLayout
from pretune.nn.dropout import Noise
from pretune.nn.initialization import ResidualBranch
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.runtime.arrays import Array


class LSHAttention(ResidualBranch):
    """LSH self-attention (Reformer): tokens sorted by hash bucket attend within chunks of the sorted sequence."""

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
        """Build an LSH attention layer: chunks of `size` sorted tokens attend to the `before` chunks before them.

        `buckets` is the number of hash buckets (even), or several even factors of it; `rounds` is how often tokens are
        hashed with other rotations. `rotations` returns normally distributed numbers, given a shape, a layer index and
        a device.
        """
        super().__init__()
        self.heads, self.head_width, self.pattern = heads, head_width, pattern
        self.size, self.before, self.buckets, self.rounds = size, before, tuple(buckets), rounds
        self.rotations = rotations if rotations is not None else Noise()
        inner = heads * head_width
        self.key_value = Linear(width, 2 * inner, bias, stacked=2)  # queries are the same as keys
        self.output = Linear(inner, width, bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to n packed tokens within the sequences of `context.layout`: (n, width) → (n, width)."""
        both, v = self.key_value(x).view(-1, 2, self.heads, self.head_width).unbind(1)
        mixed = attend_chunks(
            both,
            F.rms_norm(both, (self.head_width,), eps=1e-6),
            v,
            context.layout,
            effective_pattern(self.pattern, context.pattern),
            size=self.size,
            before=self.before,
            order=self.order(both, context),
            self_last=True,
        )
        return self.output(mixed.flatten(1))

    @torch.no_grad()
    def order(self, vectors: Tensor, context: AttentionContext) -> Tensor:
        """Return the token indices sorted by hash bucket, (heads, rounds, n), cached for the backward pass.

        `vectors`, (n, heads, head width), serve as both queries and keys.
        """
        name = ("order", context.depth)
        if name not in context.layout.cache:
            shape = (self.heads, self.head_width, self.rounds, sum(self.buckets) // 2)
            rotations = self.rotations(shape, context.depth, vectors.device).to(vectors.dtype)
            context.layout.cache[name] = sort_by_bucket(vectors, rotations, self.buckets, context.layout.queries)
        return context.layout.cache[name]  # type: ignore[no-any-return]

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.others.append(self.operations)

    def operations(self, lengths: Array) -> float:
        """Return the FLOPs of LSH attention, including its rotations, over sequences of the given lengths."""
        inner, rotated = self.heads * self.head_width, sum(self.buckets) // 2
        pairs = pairs_in_chunks(lengths, self.size, self.before).sum()
        return float(self.rounds * inner * (2 * rotated * lengths.sum() + 4 * pairs))


def sort_by_bucket(vectors: Tensor, rotations: Tensor, buckets: Sequence[int], side: TokenLayout) -> Tensor:
    """Return the indices that sort n tokens by sequence, then by LSH bucket, then by position: (heads, rounds, n).

    `vectors` are the tokens' keys, (n, heads, d); `rotations` are (heads, d, rounds, Σ buckets / 2), where `buckets`
    are factors of the number of buckets; `side` has the sequence boundaries.
    """
    rotated = torch.einsum("nhd,hdrb->hrnb", vectors, rotations)
    key = side.sequence.long().expand(rotated.shape[:-1])  # (heads, rounds, n)
    key = key * prod(buckets)
    step = 1
    for part, count in zip(torch.split(rotated, [count // 2 for count in buckets], -1), buckets, strict=True):
        key = key + step * torch.cat([part, -part], -1).argmax(-1)
        step *= count
    return key.argsort(dim=-1, stable=True)
