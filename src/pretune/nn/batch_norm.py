"""Batch normalization of rows, some of which may be filler."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe and Szegedy, 2015) that leaves filler out of its statistics.

    The running statistics are averages over the first batches, and exponential moving averages later. A batch with a single row
    is normalized by the running statistics.

    >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-0.9999949932098389, 0.9999949932098389]
    """

    momentum = 0.1  # the momentum of the moving averages
    mean: Tensor
    variance: Tensor
    seen: Tensor

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("seen", torch.zeros(()))  # number of batches

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalize x, (rows, width); statistics come from the rows where `real` is True (None: from all rows)."""
        wide, mean, variance = x.float(), self.mean, self.variance
        if self.training:
            share = torch.ones_like(wide[:, :1]) if real is None else real[:, None].float()
            rows = share.sum()
            several, share = rows > 1, share / rows.clamp(min=1)
            here = (share * wide).sum(0)
            spread = (share * (wide - here).square()).sum(0)
            mean, variance = torch.where(several, here, self.mean), torch.where(several, spread, self.variance)
            self.remember(mean.detach(), variance.detach())
        scaled = (wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias
        return scaled.to(x.dtype)

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics with those of a batch."""
        self.seen += 1
        part = (1 / self.seen).clamp(min=self.momentum)
        self.mean.lerp_(mean, part)
        self.variance.lerp_(variance, part)
