"""Score modifications: terms of the attention logits besides q·k, built for each call from q, the layout and parameters."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from pretune.nn.attention.patterns import PatternColumns
from pretune.nn.attention.pooled_layout import SEPARATE
from pretune.nn.attention.query_key_layout import AttentionLayout
from pretune.nn.attention.scaled_dot_product import ScoreMod
from pretune.packed import Packed
from pretune.runtime.arrays import Array


class ScoreModBuilder(Protocol):
    """The interface of modules that build the score modification of an attention call.

    A score modification (`score_mod`) is a function that changes an attention logit.
    """

    def __call__(self, q: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification of an attention call with n queries, (n, heads, d), and the given layout."""

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the score modification for sequences of the given `lengths`.

        `packed` is the batch of these sequences, and `slots` the number of memory tokens per sequence.
        """


class ValueTerm(Protocol):
    """The interface of modules that add a term to the output of attention, computed from the attention weights."""

    def __call__(self, weights: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
        """Return the term, (b, heads, Lq, d), given the attention weights of b sequences, (b, heads, Lq, Lk).

        `query` and `key` have the features of the queries and the keys, such as their positions.
        """

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the term for sequences of the given `lengths` (see `ScoreModBuilder.operations`)."""


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """Return the sinusoidal encodings of distances, all sines before cosines: (r,) → (r, width)."""
    steps = torch.arange(0, width, 2, device=distances.device, dtype=torch.float32)
    angles = distances[:, None].float() * 10_000.0 ** (-steps / width)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class TransformerXLScore(nn.Module):
    """The position term of Transformer-XL and XLNet, (q + u) · W r(query position − key position).

    r is a sinusoidal encoding; W and the vector u per head are learned. With `segments`, XLNet's segment term is added
    for batches with a column `segment`: (q + s) · e, where e is one of two learned vectors, for the same segment or
    not. Distances are clipped at `max_distance`.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, segments: bool = False, max_distance: int | None = None
    ) -> None:
        super().__init__()
        self.width, self.heads, self.head_width, self.max_distance = width, heads, head_width, max_distance
        self.position = nn.Parameter(torch.empty(heads * head_width, width))
        self.position_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.segment_bias = nn.Parameter(torch.zeros(heads, head_width)) if segments else None
        self.segment = nn.Parameter(torch.empty(2, heads, head_width)) if segments else None
        self.has_unused_parameters = segments  # some of its parameters are unused in some batches

    def reach(self, longest: int) -> int:
        """Return the largest distance that the position term distinguishes in sequences of up to `longest` tokens."""
        return min(longest, self.max_distance or longest)

    def forward(self, q: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification that adds the position and segment terms, scaled like the logits, by 1 / √d."""
        # Distances from +furthest (row 0) to −furthest.
        furthest = self.reach(layout.keys.max_length)
        waves = sinusoids(torch.arange(furthest, -furthest - 1, -1, device=q.device), self.width).to(q.dtype)
        keys = (waves @ self.position.to(q.dtype).T).view(-1, self.heads, self.head_width)
        scale = self.head_width**-0.5
        by_distance = torch.einsum("nhd,rhd->nhr", q + self.position_bias.to(q.dtype), keys) * scale
        by_segment = None
        if self.segment is not None and self.segment_bias is not None and "segment" in layout.queries.columns:
            shifted = q + self.segment_bias.to(q.dtype)
            by_segment = torch.einsum("nhd,shd->nhs", shifted, self.segment.to(q.dtype)) * scale

        def modify(logit: Tensor, head: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
            distance = (query["position"] - key["position"]).clamp(-furthest, furthest)
            logit = logit + by_distance[query["row"], head, furthest - distance]
            if by_segment is not None:
                differs = (query["segment"] != key["segment"]).long()
                logit = logit + by_segment[query["row"], head, differs]
            return logit

        return modify

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the position and segment terms for sequences of the given `lengths`.

        `slots` is the number of memory tokens per sequence.
        """
        distances = 2 * self.reach(packed.max_length + slots) + 1
        compared = distances + (2 if self.segment is not None and "segment" in packed.columns else 0)
        inner = self.heads * self.head_width
        return float(2 * distances * self.position.numel() + 2 * inner * compared * lengths.sum())


class FunnelScore(nn.Module):
    """The position and segment terms of Funnel-Transformer: (q + u) · W r(distance) + (q + s) · e.

    r is a sinusoidal encoding of the distance; W, the vectors u and s per head, and e, one of two vectors for different
    segments or the same, are learned. Segment 2 counts as equal to all segments. Logits whose query or key is
    marked by the column `separate` do not get these terms.
    """

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.width, self.heads, self.head_width = width, heads, head_width
        self.position = nn.Parameter(torch.empty(heads * head_width, width))
        self.position_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.segment_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.segment = nn.Parameter(torch.empty(2, heads, head_width))

    def forward(self, q: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification that adds the position and segment terms, scaled like the logits, by 1 / √d."""
        furthest, stride = layout.keys.max_length, layout.stride
        waves = sinusoids(torch.arange(furthest, -furthest - 1, -1, device=q.device) * stride, self.width).to(q.dtype)
        keys = (waves @ self.position.to(q.dtype).T).view(-1, self.heads, self.head_width)
        scale = self.head_width**-0.5
        by_distance = torch.einsum("nhd,rhd->nhr", q + self.position_bias.to(q.dtype), keys) * scale
        shifted = q + self.segment_bias.to(q.dtype)
        by_segment = torch.einsum("nhd,shd->nhs", shifted, self.segment.to(q.dtype)) * scale
        segments, separate = "segment" in layout.queries.columns, SEPARATE in layout.queries.columns

        def modify(logit: Tensor, head: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
            distance = ((query["position"] - key["position"]) // stride).clamp(-furthest, furthest)
            same = distance * 0 + 1
            if segments:
                one, other = query["segment"], key["segment"]
                same = ((one == other) | (one == 2) | (other == 2)).to(distance.dtype)
            added = by_distance[query["row"], head, furthest - distance] + by_segment[query["row"], head, same]
            if separate:
                added = torch.where(query[SEPARATE] | key[SEPARATE], torch.zeros_like(added), added)
            return logit + added

        return modify

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the position and segment terms for queries in sequences of the given `lengths`."""
        return self.operations_within(lengths, packed.max_length)

    def operations_within(self, lengths: Array, longest: int) -> float:
        """Return the FLOPs of both terms for queries in sequences of the given `lengths` and up to `longest` keys."""
        distances = 2 * longest + 1
        inner = self.heads * self.head_width
        return float(2 * distances * self.position.numel() + 2 * inner * (distances + 2) * lengths.sum())


class DisentangledScore(nn.Module):
    """DeBERTa's relative position terms (He et al., 2021): content-to-position and position-to-content.

    Distances are clipped at `max_distance`. With `buckets`, there are that many vectors per direction: half of them for
    single small distances, the others for logarithmically growing ranges.
    """

    def __init__(self, max_distance: int, buckets: int = 0) -> None:
        super().__init__()
        self.max_distance, self.buckets = max_distance, buckets
        self.per_direction = buckets or max_distance  # vectors per direction; the first one ahead is that of distance 0

    def num_reachable(self, longest: int) -> int:
        """Return how many relative position vectors per direction occur in sequences of up to `longest` tokens."""
        return self.per_direction if self.buckets else min(longest, self.per_direction)

    def reachable(self, vectors: Tensor, layout: AttentionLayout) -> Tensor:
        """Return those relative position `vectors` that occur in sequences of `layout`.

        The shapes are (2 · per_direction, width) → (2 · num_reachable(longest sequence), width).
        """
        near = self.num_reachable(layout.keys.max_length)
        return vectors[self.per_direction - near : self.per_direction + near]

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance (query position − key position), negative for negative distances."""
        if not self.buckets:
            return distance
        exact = self.buckets // 2
        # Computed in one precision, so that exact powers fall into the right bucket.
        top = torch.tensor((self.max_distance - 1) / exact, device=distance.device).log()
        ratio = (distance.abs().clamp(min=exact) / exact).log() / top
        far = (ratio * (exact - 1)).ceil().to(distance.dtype) + exact
        return torch.where(distance.abs() <= exact, distance, far * distance.sign())

    def forward(self, q: Tensor, k: Tensor, queries: Tensor, keys: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification that adds both position terms to the logits, scaled.

        These are q · `keys` (content to position) and k · `queries` (position to content), where `queries` and `keys`
        are projections of the relative position embeddings.
        """
        near, furthest = len(keys) // 2, min(layout.keys.max_length, self.max_distance)
        distances = torch.arange(-furthest, furthest + 1, device=q.device)
        rows = self.bucket(distances).clamp(-near, near - 1) + near
        scale = disentangled_scale(q.shape[-1])
        by_query = torch.einsum("nhd,rhd->nhr", q, keys * scale)
        by_key = torch.einsum("mhd,rhd->mhr", k, queries * scale)

        def modify(logit: Tensor, head: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
            row = rows[(query["position"] - key["position"]).clamp(-furthest, furthest) + furthest]
            return logit + by_query[query["row"], head, row] + by_key[key["row"], head, row]

        return modify


def disentangled_scale(head_width: int) -> float:
    """Return the scale of DeBERTa's attention logits, 1 / √(3 · head width), as they are a sum of three terms."""
    return float((3 * head_width) ** -0.5)
