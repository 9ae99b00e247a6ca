"""Early stopping: end training when a metric stops improving, and keep the best parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pretune.runtime.progress import log_info
from pretune.training.budget import Clock
from pretune.training.callbacks import Callback, Step


class EarlyStopping(Callback):
    """A callback that ends training after `patience` evaluations without a better metric, and keeps the best model."""

    name: ClassVar[str] = "best"

    def __init__(self, root: nn.Module, metric: str, patience: int, clock: Clock) -> None:
        self.metric, self.patience, self.clock = metric, patience, clock
        # Buffers are copied with the parameters: running statistics, and the ranges of quantization-aware training.
        self.parameters: dict[str, Tensor] = {name: p for name, p in root.named_parameters() if p.requires_grad}
        self.parameters |= dict(root.named_buffers())
        self.best: dict[str, Tensor] = {}
        self.metrics: dict[str, float] = {}  # of the best evaluation
        self.best_step = 0
        self.waited = 0  # evaluations since the best one

    @property
    def finished(self) -> bool:  # type: ignore[override]
        """Whether training should end, because the metric has not improved for `patience` evaluations."""
        return self.waited >= self.patience

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        """Copy the model's parameters if the early stopping metric is higher than in all earlier evaluations."""
        if self.best and not _comparable(metrics[self.metric]) > _comparable(self.metrics[self.metric]):
            self.waited += 1
            return
        self.best = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.metrics, self.best_step, self.waited = dict(metrics), step.number, 0

    @torch.no_grad()
    def on_end(self) -> dict[str, float]:
        """Load the best parameters into the model at the end of training, and return their metrics."""
        for name, best in self.best.items():
            self.parameters[name].copy_(best)
        if not self.clock.spent:
            steps = int(self.clock.used["steps"])
            log_info(f"stopped early after step {steps}: {self.metric} has not improved since step {self.best_step}")
        return {f"dev/{name}": value for name, value in self.metrics.items()} | {"best_step": float(self.best_step)}

    def state(self) -> dict[str, Any]:
        """Return the step and metrics of the best evaluation, and the number of evaluations since it."""
        return {"found": self.metrics, "step": self.best_step, "waited": self.waited}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the best parameters so far by name, to be saved in a checkpoint."""
        return self.best

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the best parameters, their metrics, and their step from a checkpoint."""
        self.metrics, self.best_step, self.waited = state["found"], state["step"], state["waited"]
        self.best = {name: tensor.to(self.parameters[name].device, copy=True) for name, tensor in tensors.items()}


def _comparable(metric: float) -> float:
    return -math.inf if math.isnan(metric) else metric
