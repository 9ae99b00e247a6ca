"""Weights of small magnitude set to 0, all at once or little by little during a training (Zhu and Gupta, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.embeddings import Embeddings
from pretune.nn.linear import Linear
from pretune.nn.recurrent import Recurrence

REACHED = 0.7  # share of a training after which all zeros are there; the rest is for recovery
LEVELS = 20  # in how many steps they come


def matrices(module: nn.Module) -> list[Tensor]:
    """What can have zeros: the matrices of linear maps and of recurrent cells, and the vectors of tokens."""
    found: dict[int, Tensor] = {}
    for child in module.modules():
        if isinstance(child, Recurrence):
            found |= {id(weight): weight for weight in (child.weight_ih, child.weight_hh)}
        elif isinstance(child, Linear | Embeddings):
            weight = child.weight if isinstance(child, Linear) else child.tokens
            found[id(weight)] = weight
    return list(found.values())


def smallest(weight: Tensor, share: float) -> Tensor:
    """Where that share of a matrix is which is nearest to 0.

    >>> smallest(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), 0.5)
    tensor([[ True, False],
            [False,  True]])
    """
    count = int(share * weight.numel())
    if not count:
        return torch.zeros_like(weight, dtype=torch.bool)
    sizes = weight.detach().abs()
    return sizes <= sizes.flatten().kthvalue(count).values


@torch.no_grad()
def make_sparse(module: nn.Module, share: float) -> None:
    """Set that share of each matrix to 0, what is nearest to it."""
    for weight in matrices(module):
        weight.masked_fill_(smallest(weight, share), 0.0)


class Sparsifier:
    """Called after each step of a training: more and more weights become 0, and stay it."""

    def __init__(self, module: nn.Module, share: float) -> None:
        self.weights, self.share = matrices(module), share
        self.level = -1
        self.zeros: list[Tensor] = []

    def target(self, progress: float) -> float:
        """The share of zeros at a share of the training: quickly at first, when there is much that is not needed."""
        level = min(LEVELS, int(progress / REACHED * LEVELS)) / LEVELS
        return self.share * (1 - (1 - level) ** 3)

    @torch.no_grad()
    def __call__(self, progress: float) -> None:
        """After a step."""
        level = min(LEVELS, int(progress / REACHED * LEVELS))
        if level != self.level:  # in a training that was resumed, the zeros that are there are the smallest
            self.level = level
            self.zeros = [smallest(weight, self.target(progress)) for weight in self.weights]
        for weight, zeros in zip(self.weights, self.zeros, strict=True):
            weight.masked_fill_(zeros, 0.0)


def zeros_in(module: nn.Module) -> float:
    """The share of zeros in all matrices together."""
    weights = matrices(module)
    return sum(int((weight == 0).sum()) for weight in weights) / max(1, sum(weight.numel() for weight in weights))
