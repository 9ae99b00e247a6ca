"""Weight averaging: an exponential moving average, or the plain mean over the end of training.

An average is often better than the last weights, for the price of one copy of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pretune.training.budget import Clock
from pretune.training.callbacks import Callback, Step
from pretune.training.parallel.fsdp_tensors import copy_into, local_rows
from pretune.training.recipe_sections import Optimizer


class WeightAverage(Callback):
    """A callback that averages all parameters over training; the average is evaluated, and replaces the trained model.

    With `ema_decay`, it is an exponential moving average; with `average_fraction`, the mean over the end of
    training.
    """

    name: ClassVar[str] = "average"

    def __init__(self, root: nn.Module, settings: Optimizer, clock: Clock) -> None:
        self.clock = clock
        self.ema, self.start = settings.ema_decay, 1.0 - (settings.average_fraction or 1.0)
        self.parameters = {name: p for name, p in root.named_parameters() if p.requires_grad}
        self.means = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.count = 0  # steps in the mean

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Add the current parameters to their running mean after each update."""
        if self.clock.progress() < self.start:
            return
        self.count += 1
        weight = 1.0 / self.count if self.ema is None else max(1.0 - self.ema, 1.0 / self.count)
        torch._foreach_lerp_(_locals(self.means), _locals(self.parameters), weight)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Return a context manager in which the parameters are replaced by their running mean, for an evaluation."""
        last = [p.detach().clone() for p in _locals(self.parameters)]
        self.on_end()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(_locals(self.parameters), last)

    @torch.no_grad()
    def on_end(self) -> dict[str, float]:
        """Replace the parameters by their running mean at the end of training."""
        if self.count:
            torch._foreach_copy_(_locals(self.parameters), _locals(self.means))
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the running mean of the parameters and the number of steps in it, for a checkpoint."""
        return {**self.means, "count": torch.tensor(self.count)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the running mean of the parameters from a checkpoint."""
        self.count = int(tensors["count"])
        for name, mean in self.means.items():
            copy_into(mean, tensors[name])


def _locals(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [local_rows(tensor) for tensor in tensors.values()]
