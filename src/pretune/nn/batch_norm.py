"""Batch normalization over rows of which some are filler."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Each column less its mean over the rows of a batch, over their deviation (Ioffe and Szegedy, 2015).

    What was seen in training counts afterwards: the mean of the first batches, of more of them one that forgets. Of one row
    alone there is no deviation, so that what was seen before stands in.

    >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-0.9999949932098389, 0.9999949932098389]
    """

    forgets = 0.1  # a share of what was seen, with each batch
    mean: Tensor
    variance: Tensor
    seen: Tensor

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("seen", torch.zeros(()))  # batches

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """(rows, width) → (rows, width); `real` rows, all where it is None, make the statistics."""
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
        """Add a batch to what was seen."""
        self.seen += 1
        part = (1 / self.seen).clamp(min=self.forgets)
        self.mean.lerp_(mean, part)
        self.variance.lerp_(variance, part)
