"""The moving average of a model in SMART, which keeps the model's predictions close to those of the average."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from pretune.objectives.tasks.smoothness import ReferenceModel
from pretune.training.callbacks import Callback, Step

if TYPE_CHECKING:
    from pretune.training.loop import Training

EARLY, DECAY_EARLY, DECAY = 0.1, 0.99, 0.999  # in the first tenth of training the average moves faster


class ProximalPoint(Callback):
    """A callback that keeps a moving average of the trained parameters in a `ReferenceModel`, which SMART reads."""

    name: ClassVar[str] = "proximal"

    def __init__(self, reference: ReferenceModel) -> None:
        self.reference = reference
        self.pairs: dict[str, tuple[Tensor, nn.Parameter]] = {}  # by name: the mean, and the parameter

    def on_start(self, training: Training) -> None:
        """Copy the model before its first update, as the initial value of the moving average."""
        copy = deepcopy(training.root).eval().requires_grad_(False)
        means = dict(copy.named_parameters())
        self.pairs = {name: (means[name], p) for name, p in training.root.named_parameters() if p.requires_grad}
        self.reference.root = copy

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Move the average towards the current parameters after an update."""
        decay = DECAY_EARLY if step.progress < EARLY else DECAY
        for mean, parameter in self.pairs.values():
            mean.lerp_(parameter, 1 - decay)

    def on_end(self) -> dict[str, float]:
        """Free the copy of the model at the end of training."""
        self.reference.root, self.pairs = None, {}
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the moving averages by parameter name, for a checkpoint."""
        return {name: mean for name, (mean, _) in self.pairs.items()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the moving averages from a checkpoint."""
        for name, (mean, _) in self.pairs.items():
            mean.copy_(tensors[name])
