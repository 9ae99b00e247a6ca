"""Magnitude pruning: the smallest weights are set to 0, at once or gradually during training (Zhu and Gupta, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.linear import Linear
from pretune.nn.recurrent import RecurrentCells

FINAL_SPARSITY_AT = 0.7  # fraction of training after which the final sparsity is reached; the rest is for recovery
PRUNING_STEPS = 20  # number of pruning steps


def prunable_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of a module that can be pruned: those of linear and recurrent layers, and token embeddings."""
    weights: list[Tensor] = []
    for child in module.modules():
        if isinstance(child, RecurrentCells):
            weights += [child.weight_ih, child.weight_hh]
        elif isinstance(child, Linear | Embeddings):
            weights.append(child.weight if isinstance(child, Linear) else child.tokens)
    return list({id(weight): weight for weight in weights}.values())  # shared ones once


def smallest_mask(weight: Tensor, share: float) -> Tensor:
    """Return a mask that selects the fraction `share` of weights with the smallest magnitude.

    >>> smallest_mask(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), 0.5)
    tensor([[ True, False],
            [False,  True]])
    """
    count = int(share * weight.numel())
    if not count:
        return torch.zeros_like(weight, dtype=torch.bool)
    sizes = weight.detach().abs()
    return sizes <= sizes.flatten().kthvalue(count).values


@torch.no_grad()
def prune_by_magnitude(module: nn.Module, share: float) -> None:
    """Set the fraction `share` of each prunable weight matrix to 0, smallest magnitudes first."""
    for weight in prunable_weights(module):
        weight.masked_fill_(smallest_mask(weight, share), 0.0)


def _pruning_step(progress: float) -> int:
    return min(PRUNING_STEPS, int(progress / FINAL_SPARSITY_AT * PRUNING_STEPS))


class GradualMagnitudePruning:
    """A callback that gradually prunes a module to the sparsity `share`, to be called after each training step."""

    def __init__(self, module: nn.Module, share: float) -> None:
        self.weights, self.share = prunable_weights(module), share
        self.level = -1
        self.zeros: list[Tensor] = []

    def target(self, progress: float) -> float:
        """Return the target sparsity when the fraction `progress` of training is done; it rises fast, then slowly."""
        return self.share * (1 - (1 - _pruning_step(progress) / PRUNING_STEPS) ** 3)

    @torch.no_grad()
    def __call__(self, progress: float) -> None:
        """Set the smallest weights to 0, up to the target sparsity when the fraction `progress` of training is done."""
        level = _pruning_step(progress)
        if level != self.level:  # after a resume, weights that were pruned are still 0 and thus the smallest
            self.level = level
            self.zeros = [smallest_mask(weight, self.target(progress)) for weight in self.weights]
        for weight, zeros in zip(self.weights, self.zeros, strict=True):
            weight.masked_fill_(zeros, 0.0)


def sparsity(module: nn.Module) -> float:
    """Return the fraction of zeros in all prunable weights of a module."""
    weights = prunable_weights(module)
    return sum(int((weight == 0).sum()) for weight in weights) / max(1, sum(weight.numel() for weight in weights))
