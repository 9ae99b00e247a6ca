"""T5's relative position bias: a learned scalar per head and bucket of distances, added to the attention logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pretune.nn.attention.patterns import PatternColumns
from pretune.nn.attention.query_key_layout import AttentionLayout
from pretune.nn.attention.scaled_dot_product import ScoreMod
from pretune.nn.initialization import InitializationScheme
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed
from pretune.runtime.arrays import Array


class T5RelativeBias(nn.Module):
    """T5's relative position bias (Raffel et al., 2020) for buckets of distances.

    Half of the buckets are single small distances; the others are ranges that grow logarithmically.
    """

    def __init__(
        self,
        heads: int,
        buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        width: int | None = None,
    ) -> None:
        """Build T5's relative position biases, initialized according to `width`, the width of the hidden states."""
        super().__init__()
        self.buckets, self.max_distance, self.bidirectional, self.width = buckets, max_distance, bidirectional, width
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Initialize the bias table by `scheme`, with the width of the hidden states as the fan-in."""
        scheme.draw(self.weight, fan_in=self.width)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add nothing to `saved`: the table of biases does not grow with the number of tokens."""

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the index of the bucket of each distance, which is key position − query position."""
        buckets = self.buckets
        offset = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            offset = (distance > 0).to(distance.dtype) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (buckets - exact)).to(distance.dtype)).clamp(max=buckets - 1)
        return offset + torch.where(distance < exact, distance, far)

    def forward(self, q: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification that adds to each logit the learned bias of its head and bucket of distances."""
        # All distances beyond `max_distance` are alike, so a small table per distance is enough, instead of one entry per pair.
        furthest = self.max_distance
        distances = torch.arange(-furthest, furthest + 1, device=q.device)
        by_distance = self.weight[self.bucket(distances)]  # (distances, heads)

        def modify(logit: Tensor, head: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
            distance = (key["position"] - query["position"]).clamp(-furthest, furthest)
            return logit + by_distance[distance + furthest, head].to(logit.dtype)

        return modify

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return 0, the FLOPs of the relative position bias, which is only a table lookup."""
        return 0.0
