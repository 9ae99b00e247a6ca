"""Functional relative positions (Wei et al., 2019, NEZHA): sinusoids of clipped distances, added to keys and values.

A query at position i attends to the key k + a and mixes the value v + a of a token at position j, where a is the
sinusoidal encoding of the distance j − i, clipped at a maximum distance. Nothing is learned; all heads and layers use
the same encodings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.attention.patterns import PatternColumns
from pretune.nn.attention.query_key_layout import AttentionLayout
from pretune.nn.attention.scaled_dot_product import ScoreMod
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from pretune.packed import Packed
from pretune.runtime.arrays import Array


class FunctionalPositions(nn.Module):
    """Fixed sinusoidal encodings of relative positions (NEZHA), one vector per distance up to `max_distance`."""

    def __init__(self, heads: int, head_width: int, max_distance: int) -> None:
        super().__init__()
        self.heads, self.max_distance = heads, max_distance
        self.encoding = SinusoidalPositions(head_width)

    def vectors(self, like: Tensor) -> Tensor:
        """Return the encodings of the distances from −max_distance to max_distance, (2 · max_distance + 1, head width).

        The result has the device and the data type of the tensor `like`.

        >>> FunctionalPositions(2, 8, max_distance=3).vectors(torch.zeros(1)).shape
        torch.Size([7, 8])
        """
        places = torch.arange(2 * self.max_distance + 1, device=like.device)
        return self.encoding(places).to(like.dtype)

    def index(self, query: PatternColumns, key: PatternColumns) -> Tensor:
        """Return the index of the encoding of each distance (key position − query position) in `vectors`."""
        distance = key["position"] - query["position"]
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def operations(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the product of each token with all encodings, for sequences of the given `lengths`."""
        return float(2 * (2 * self.max_distance + 1) * self.heads * self.encoding.width * lengths.sum())


class FunctionalKeys(FunctionalPositions):
    """Relative positions given by fixed sinusoids (NEZHA), whose vectors are added to the keys of attention."""

    def forward(self, q: Tensor, layout: AttentionLayout) -> ScoreMod:
        """Return the score modification that adds q · a / √d to the logit of a query q and a key.

        a is the encoding of the distance from the query to the key, and d is the width of a head.
        """
        by_distance = torch.einsum("nhd,rd->nhr", q, self.vectors(q)) * q.shape[-1] ** -0.5

        def modify(logit: Tensor, head: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
            return logit + by_distance[query["row"], head, self.index(query, key)]

        return modify


class FunctionalValues(FunctionalPositions):
    """Relative positions given by fixed sinusoids (NEZHA), whose vectors are added to the values of attention."""

    def forward(self, weights: Tensor, query: PatternColumns, key: PatternColumns) -> Tensor:
        """Return, for each query, the sum of the encodings of its distances to all keys, by attention weight.

        The shapes are (b, heads, Lq, Lk) → (b, heads, Lq, head width).
        """
        # Summed per distance first: there are fewer distances than pairs of tokens.
        index = self.index(query, key).expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:-1], 2 * self.max_distance + 1)
        return by_distance.scatter_add(-1, index, weights) @ self.vectors(weights)
