"""Low-rank adapters (Hu et al., 2022, LoRA): the product of two thin matrices is added to a frozen weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pretune.nn.linear import Linear


class LoRA(nn.Module):
    """The parametrization W + scale · B A of a weight W (LoRA); B starts at 0.

    If W consists of stacked matrices, such as queries, keys and values, each has an A and a B of its own.
    """

    def __init__(self, weight: Tensor, stacked: int, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.shape[0] // stacked, weight.shape[1]
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(stacked, rank, columns).normal_(std=columns**-0.5))
        self.up = nn.Parameter(weight.new_zeros(stacked, rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight matrix plus the low-rank LoRA update."""
        return weight + self.scale * torch.bmm(self.up, self.down).view(weight.shape)


def add_lora(module: nn.Module, rank: int, scale: float) -> None:
    """Freeze a module and add trainable low-rank adapters (LoRA) of the given rank to all its linear layers."""
    module.requires_grad_(False)
    for child in [child for child in module.modules() if isinstance(child, Linear)]:
        adapter = LoRA(child.weight, child.stacked, rank, scale)
        parametrize.register_parametrization(child, "weight", adapter)


def merge_lora(module: nn.Module) -> None:
    """Add the low-rank adapters of all linear layers of a module to their weights, and remove the adapters."""
    for child in list(module.modules()):
        if isinstance(child, Linear) and parametrize.is_parametrized(child, "weight"):
            parametrize.remove_parametrizations(child, "weight", leave_parametrized=True)
