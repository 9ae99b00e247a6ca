"""From ids to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear
from pretune.packed import Packed


class Embeddings(nn.Module):
    """Token vectors plus positions plus segments, then norm and dropout; any of these but the tokens may be absent."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        positions: nn.Module | None = None,
        segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(vocabulary, width))
        self.positions = positions
        self.segments = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.norm = norm if norm is not None else nn.Identity()
        self.dropout = Dropout(dropout)
        self.compute = torch.float32  # the type of everything that follows

    @property
    def vocabulary(self) -> int:
        """Number of token vectors."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """Length of a vector."""
        return self.tokens.shape[1]

    def vectors(self, packed: Packed) -> Tensor:
        """(n,) ids → (n, width of the token vectors)."""
        x = F.embedding(packed.ids, self.tokens)
        if self.positions is not None:
            x = x + self.positions(packed.positions)
        if self.segments is not None:
            segment = packed.columns.get("segment")
            x = x + (self.segments[0] if segment is None else F.embedding(segment, self.segments))
        return self.dropout(self.norm(x.to(self.compute)))

    def forward(self, packed: Packed) -> Tensor:
        """(n,) ids → (n, width)."""
        return self.vectors(packed)


class Given(nn.Module):
    """Vectors that come with the tokens, as column `vectors`, led to another width: how a network shares an embedding."""

    positions: None = None

    def __init__(self, vectors: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.project = Linear(vectors, width) if vectors != width else nn.Identity()

    def forward(self, packed: Packed) -> Tensor:
        """(n, vectors) → (n, width)."""
        out: Tensor = self.project(packed.columns["vectors"])
        return out
