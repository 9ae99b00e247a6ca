"""Disentangled attention (He et al., 2021, DeBERTa): separate queries and keys for tokens and relative positions."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.multi_head import AttentionContext, LogitInputs, ShowsLogits, head_width_of
from pretune.nn.attention.patterns import effective_pattern, full
from pretune.nn.attention.scaled_dot_product import ScoreMod, attend
from pretune.nn.attention.score_mods import DisentangledScore, disentangled_scale
from pretune.nn.dropout import Dropout
from pretune.nn.initialization import ResidualBranch
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.packed import Packed
from pretune.runtime.arrays import Array


class RelativeEmbeddings(nn.Module):
    """Relative position embeddings: one vector per distance or bucket of distances, most negative distance first."""

    def __init__(self, count: int, width: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))
        self.norm = norm if norm is not None else nn.Identity()

    def forward(self) -> Tensor:
        """Return all relative position embeddings after normalization, (count, width)."""
        return self.norm(self.weight)


class Projections(Protocol):
    """The interface of the query, key and value projections of disentangled attention.

    They project hidden states to queries, keys and values, and relative position embeddings to queries and keys.
    """

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of n hidden states: (n, width) → (n, heads, head width) each."""

    def positions(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of relative position embeddings: (rows, width) → (rows, heads, head width) each."""


class SeparateProjections(nn.Module):
    """Separate projections for hidden states and for relative position embeddings (DeBERTa); keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.content = Linear(width, 3 * width, bias=False)
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.value_bias = nn.Parameter(torch.zeros(width))
        self.position_key = nn.Parameter(torch.empty(width, width))
        self.position_query = nn.Parameter(torch.empty(width, width))
        self.position_query_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of n hidden states: (n, width) → (n, heads, head width) each."""
        q, k, v = self.content(x).view(x.shape[0], self.heads, 3, -1).unbind(2)
        query_bias, value_bias = (bias.to(x.dtype).view(self.heads, -1) for bias in (self.query_bias, self.value_bias))
        return q + query_bias, k, v + value_bias

    def positions(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of relative position embeddings: (rows, width) → (rows, heads, head width) each."""
        kind = vectors.dtype
        queries = F.linear(vectors, self.position_query.to(kind), self.position_query_bias.to(kind))
        keys = F.linear(vectors, self.position_key.to(kind))
        return queries.view(len(vectors), self.heads, -1), keys.view(len(vectors), self.heads, -1)


class SharedProjections(nn.Module):
    """Projections that hidden states and relative position embeddings share (DeBERTa-v2 and v3)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width, stacked=3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of n hidden states: (n, width) → (n, heads, head width) each."""
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        return q, k, v

    def positions(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of relative position embeddings: (rows, width) → (rows, heads, head width) each."""
        both = 2 * self.qkv.in_features  # rows of the matrix for queries and keys
        weight, bias = (part[:both].to(vectors.dtype) for part in (self.qkv.weight, self.qkv.bias))
        queries, keys = F.linear(vectors, weight, bias).view(len(vectors), 2, self.heads, -1).unbind(1)
        return queries, keys


class DisentangledAttention(ResidualBranch, ShowsLogits):
    """Disentangled self-attention (DeBERTa), whose logits depend on content and on relative position embeddings."""

    def __init__(
        self,
        width: int,
        heads: int,
        project: Projections,
        score: DisentangledScore,
        *,
        distance_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        """Build a DeBERTa attention layer from its projections, `project`, and its position terms, `score`.

        `distance_dropout` is the dropout rate of the relative position embeddings.
        """
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, head_width_of(width, heads), dropout
        self.project, self.score, self.distance_dropout = project, score, Dropout(distance_dropout)
        self.output = Linear(width, width)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to n packed tokens within the sequences of `context.layout`: (n, width) → (n, width)."""
        q, k, v, score_mod = self.project_all(x, context)
        pattern, dropout = effective_pattern(full, context.pattern), self.dropout if self.training else 0.0
        scale = disentangled_scale(self.head_width)
        # Three lookups per pair of tokens: a second prefetched block would not fit into the kernel's shared memory.
        mixed = attend(q, k, v, context.layout, pattern, score_mod, scale, dropout=dropout, stages=1)
        return self.output(mixed.flatten(1))

    def project_all(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor, ScoreMod]:
        """Return the queries, keys and values of hidden states x, and the score modification with the position terms.

        Queries, keys and values are (n, heads, head width) each.
        """
        assert context.distances is not None
        q, k, v = self.project(x)
        vectors = self.distance_dropout(self.score.reachable(context.distances, context.layout))
        return q, k, v, self.score(q, k, *self.project.positions(vectors), context.layout)

    def logit_inputs(self, x: Tensor, context: AttentionContext) -> LogitInputs:
        """Return the queries, keys, pattern and position terms that give the attention logits of hidden states x."""
        q, k, _, score_mod = self.project_all(x, context)
        pattern, scale = effective_pattern(full, context.pattern), disentangled_scale(self.head_width)
        return LogitInputs(q, k, pattern, score_mod, scale)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this layer, including position terms, to `sizes`, from which FLOPs are computed."""
        sizes.add_attention(full, self.heads * self.head_width)
        sizes.relative.append(self.position_operations)

    def position_operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of DeBERTa's position terms for sequences of the given `lengths`.

        `slots`, the number of memory tokens per sequence, is not used, because DeBERTa has no memory.
        """
        distances, inner = 2 * self.score.num_reachable(packed.max_length), self.heads * self.head_width
        return float(4 * distances * inner * (self.output.out_features + lengths.sum()))
