"""The best parameters of a training: what comes out when it ends as soon as it gets no better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Best:
    """A copy of the parameters that did best in an evaluation, beside those that go on.

    After `patience` evaluations in a row that found nothing better, it is enough. A metric that is not a number is the worst.
    """

    def __init__(self, root: nn.Module, metric: str, patience: int) -> None:
        self.metric, self.patience = metric, patience
        # Buffers belong to them: running statistics, and ranges learned for int8.
        self.parameters: dict[str, Tensor] = {name: p for name, p in root.named_parameters() if p.requires_grad}
        self.parameters |= dict(root.named_buffers())
        self.kept: dict[str, Tensor] = {}
        self.found: dict[str, float] = {}  # by that evaluation
        self.step = 0  # of that evaluation
        self.waited = 0  # evaluations since

    @property
    def enough(self) -> bool:
        """Whether training should end."""
        return self.waited >= self.patience

    def look(self, found: Mapping[str, float], step: int) -> None:
        """Keep the parameters as they are, if an evaluation found them better than all before."""
        if self.kept and not _value(found[self.metric]) > _value(self.found[self.metric]):
            self.waited += 1
            return
        self.kept = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.found, self.step, self.waited = dict(found), step, 0

    @torch.no_grad()
    def apply(self) -> dict[str, float]:
        """The parameters become the best ones; what the evaluation found of them, for the log."""
        for name, kept in self.kept.items():
            self.parameters[name].copy_(kept)
        return {f"dev/{name}": value for name, value in self.found.items()} | {"best_step": float(self.step)}

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"found": self.found, "step": self.step, "waited": self.waited}

    def tensors(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return self.kept

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state` and `tensors`."""
        self.found, self.step, self.waited = state["found"], state["step"], state["waited"]
        self.kept = {name: tensor.to(self.parameters[name].device, copy=True) for name, tensor in tensors.items()}


def _value(metric: float) -> float:
    return -math.inf if math.isnan(metric) else metric
