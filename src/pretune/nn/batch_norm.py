"""Batch normalization of the rows of a batch, some of which may be padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe and Szegedy, 2015) whose statistics exclude padding rows.

    Running statistics, used in evaluation and for batches of one row, are moving averages with a momentum of 0.1.

    >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-0.9999949932098389, 0.9999949932098389]
    """

    momentum = 0.1  # of the moving averages
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
        rows, mean, variance = x.float(), self.mean, self.variance
        if self.training:
            weight = torch.ones_like(rows[:, :1]) if real is None else real[:, None].float()
            count = weight.sum()
            several, weight = count > 1, weight / count.clamp(min=1)
            batch_mean = (weight * rows).sum(0)
            batch_variance = (weight * (rows - batch_mean).square()).sum(0)
            mean = torch.where(several, batch_mean, self.mean)
            variance = torch.where(several, batch_variance, self.variance)
            with torch.no_grad():
                self.seen += 1
                part = (1 / self.seen).clamp(min=self.momentum)
                self.mean.lerp_(mean, part)
                self.variance.lerp_(variance, part)
        return ((rows - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)
