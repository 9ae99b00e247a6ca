"""The FLOPs of one batch, by the formulas of `pretune.training.flops`."""

from __future__ import annotations

from torch import nn

from pretune.packed import Batch
from pretune.training.flops import Flops


def itemize_flops(root: nn.Module, batch: Batch) -> dict[str, float]:
    """Return the FLOPs of one forward pass by item."""
    return Flops(root).itemize(batch)


def forward_flops(root: nn.Module, batch: Batch) -> float:
    """Return the FLOPs of one forward pass through the backbone and the heads."""
    return sum(itemize_flops(root, batch).values())


def training_flops(root: nn.Module, batch: Batch) -> float:
    """Return the FLOPs of one forward and backward pass."""
    return Flops(root).training(batch)
