"""Positional encodings: learned and sinusoidal ones are added to embeddings, rotary ones rotate queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.runtime.errors import PretuneError


class LearnedPositions(nn.Module):
    """Learned position embeddings for a fixed number of positions (BERT, GPT)."""

    def __init__(self, positions: int, width: int, first: int = 0) -> None:
        """Build a table of position embeddings; `first` is the row of position 0, earlier rows are unused (RoBERTa)."""
        super().__init__()
        self.max_positions, self.first = positions, first
        self.weight = nn.Parameter(torch.empty(first + positions, width))

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embeddings of positions: (n,) → (n, width)."""
        return F.embedding(positions + self.first if self.first else positions, self.weight)

    def freeze_sinusoidal(self) -> None:
        """Fill the table with sinusoidal encodings and freeze it, as in published XLM and DistilBERT checkpoints."""
        rows, width = self.weight.shape
        with torch.no_grad():
            self.weight.copy_(SinusoidalPositions(width)(torch.arange(rows, device=self.weight.device)))
        self.weight.requires_grad_(False)


class AxialPositions(nn.Module):
    """Axial position embeddings (Kitaev et al., 2020): concatenated vectors of a position's coordinates in a grid."""

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        """Build one embedding table per axis of a grid of positions.

        `shape` has the lengths of the axes, and `widths` the widths of the vectors per axis.
        """
        super().__init__()
        self.max_positions = prod(shape)
        # Shaped as in published checkpoints: (rows, 1, width), (1, columns, width).
        sizes = [[size if axis == own else 1 for axis in range(len(shape))] for own, size in enumerate(shape)]
        self.weights = nn.ParameterList(torch.empty(*size, width) for size, width in zip(sizes, widths, strict=True))

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embeddings of positions: (n,) → (n, width)."""
        parts = []
        for weight in reversed(self.weights):
            table = weight.flatten(0, -2)
            parts.append(F.embedding(positions % len(table), table))
            positions = positions // len(table)
        return torch.cat(parts[::-1], 1)


class SinusoidalPositions(nn.Module):
    """Sinusoidal position encodings (Vaswani et al., 2017); with `halves`, all sines come before cosines (Marian)."""

    def __init__(self, width: int, halves: bool = False) -> None:
        super().__init__()
        self.width, self.halves = width, halves

    def forward(self, positions: Tensor) -> Tensor:
        """Return the encodings of positions: (n,) → (n, width)."""
        steps = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() * 10_000.0 ** (-steps / self.width)  # (n, width / 2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=1 if self.halves else 2)
        return waves.flatten(1)[:, : self.width]


class RotaryPositions(nn.Module):
    """Rotary position embeddings (Su et al., 2021), for heads of width d.

    Columns i and i + d/2 of a head are rotated by the angle position · base^(-2i/d).
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise PretuneError(
                f"rotary positions need attention heads of an even width, not {head_width}; change hidden_size or num_attention_heads in config.json"
            )
        self.head_width, self.base = head_width, base

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of the rotation angles of n positions, (n, d/2) each, for heads of width d."""
        steps = torch.arange(0, self.head_width, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() * self.base ** (-steps / self.head_width)
        return angles.cos(), angles.sin()

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries or keys x, (n, heads, d), in fp32; `angles` are the cosines and sines, (n, d/2) each."""
        cosine, sine = (part[:, None] for part in angles)  # the same for all heads
        first, second = x.float().chunk(2, dim=-1)
        rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return rotated.to(x.dtype)
