"""Averages of weights over training: often better than the last ones, for the price of a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pretune.training.parallel.fsdp_tensors import local, put_back
from pretune.training.settings import Optimizer


class Average:
    """A running mean of all parameters, beside them.

    With `ema` it is exponential: each step moves it by 1 - ema (more at first, when it is the plain mean of what there was).
    With `average` it is the plain mean over that share of the budget, at its end.
    """

    def __init__(self, root: nn.Module, settings: Optimizer) -> None:
        self.ema, self.start = settings.ema, 1.0 - (settings.average or 1.0)
        self.parameters = {name: p for name, p in root.named_parameters() if p.requires_grad}
        self.means = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.count = 0

    @torch.no_grad()
    def update(self, progress: float) -> None:
        """Take the parameters in, as they are after a step that took the budget to this share."""
        if progress < self.start:
            return
        self.count += 1
        weight = 1.0 / self.count if self.ema is None else max(1.0 - self.ema, 1.0 / self.count)
        torch._foreach_lerp_(here(self.means), here(self.parameters), weight)

    @torch.no_grad()
    def apply(self) -> None:
        """The parameters become their mean."""
        if self.count:
            torch._foreach_copy_(here(self.parameters), here(self.means))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The parameters are their mean for a while, to evaluate it."""
        kept = [p.detach().clone() for p in here(self.parameters)]
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(here(self.parameters), kept)

    def tensors(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {**self.means, "count": torch.tensor(self.count)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.count = int(tensors["count"])
        for name, mean in self.means.items():
            put_back(mean, tensors[name])


def here(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Of tensors that are shared out to processes, the rows here."""
    return [local(tensor) for tensor in tensors.values()]


def make_average(root: nn.Module, settings: Optimizer) -> Average | None:
    """The average a recipe asks for, if it does."""
    return Average(root, settings) if settings.ema is not None or settings.average is not None else None
