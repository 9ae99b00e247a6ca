"""Training with 8 bits in mind (Zafrir et al., 2019, *Q8BERT*): forward passes see rounded numbers, gradients pass through.

Matrices and vectors of tokens are rounded by the range of each row; what goes into a linear map, by an exponential mean of its
largest magnitude. In the end the rounded numbers stay, so that making them integers changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pretune.nn.embeddings import Embeddings
from pretune.nn.linear import Linear
from pretune.nn.recurrent import Recurrence

DECAY = 0.9  # of the mean, as in Q8BERT


def rounded(x: Tensor, largest: Tensor) -> Tensor:
    """The nearest of 255 numbers around 0; the gradient is that of x.

    >>> rounded(torch.tensor([0.3, 9.0]), torch.tensor(1.27)).tolist()  # doctest: +ELLIPSIS
    [0.30..., 1.2...]
    """
    scale = (largest / 127).clamp(min=1e-12)
    whole = (x / scale).round().clamp(-127, 127) * scale
    return x + (whole - x).detach()


class RoundedRows(nn.Module):
    """A matrix as it will be with 8 bits."""

    def forward(self, weight: Tensor) -> Tensor:
        """Each row by its own range."""
        return rounded(weight, weight.detach().abs().amax(1, keepdim=True))


class RoundedInput(nn.Module):
    """What goes into a linear map as it will be with 8 bits."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A hook before the forward of a linear map."""
        x = args[0]
        if module.training:
            with torch.no_grad():
                now = x.abs().amax().float()
                first = self.largest == 0
                self.largest.copy_(torch.where(first, now, DECAY * self.largest + (1 - DECAY) * now))
        return (rounded(x, self.largest.to(x.dtype)), *args[1:])


def _parts(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for child in list(module.modules()):
        if isinstance(child, Linear):
            yield child, "weight"
        elif isinstance(child, Embeddings):
            yield child, "tokens"
        elif isinstance(child, Recurrence):
            yield child, "weight_ih"
            yield child, "weight_hh"


def add_rounding(module: nn.Module) -> None:
    """Let a module compute as if with 8 bits."""
    for child, name in _parts(module):
        parametrize.register_parametrization(child, name, RoundedRows())
        if isinstance(child, Linear):
            child.input_range = RoundedInput().to(child.weight.device)
            child.hook = child.register_forward_pre_hook(child.input_range)  # type: ignore[assignment]


def keep_rounded(module: nn.Module) -> None:
    """Let the rounded numbers be the module's own."""
    for child, name in _parts(module):
        if parametrize.is_parametrized(child, name):
            parametrize.remove_parametrizations(child, name, leave_parametrized=True)
        if hasattr(child, "input_range"):
            child.hook.remove()  # type: ignore[operator, union-attr]
            del child.input_range, child.hook
