"""From ids to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
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
        scale: float = 1.0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        """`scale` is that of the token vectors alone (the Transformer has √width)."""
        super().__init__()
        self.scale = scale
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

    def forward(self, packed: Packed) -> Tensor:
        """(n,) ids → (n, width)."""
        x = F.embedding(packed.ids, self.tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(packed.positions)
        if self.segments is not None:
            segment = packed.columns.get("segment")
            x = x + (self.segments[0] if segment is None else F.embedding(segment, self.segments))
        return self.dropout(self.norm(x.to(self.compute)))
