"""Spike detection: stop training, or skip the step, when the loss or the gradient norm explodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.training.callbacks import Callback, Step
from pretune.training.data_streams import describe_packs
from pretune.training.parallel.distributed import World

DECAY = 0.98  # of the running means
WARMUP = 20  # steps before anything counts as a spike


@dataclass
class SpikeGuard(Callback):
    """A callback that stops training, or skips a step, if the loss or the gradient norm is far above its running mean.

    A value is a spike if it is more than `factor` times its running mean.

    >>> guard = SpikeGuard(factor=3.0)
    >>> all(guard.find_spike(2.0, 1.0) is None for _ in range(30))
    True
    >>> guard.find_spike(2.0, 9.0)
    'the gradient norm is 9, 9.0 times its running mean'
    """

    name: ClassVar[str] = "guard"

    factor: float  # a value this many times its running mean is a spike
    world: World = field(default_factory=World)
    skip: bool = False  # skip a step with a spike instead of raising an error
    running_means: dict[str, float] = field(default_factory=dict)
    seen: int = 0  # steps

    def allow_update(self, step: Step) -> bool:
        """Return whether a step may update the model, which is false if the step has a spike and spikes are skipped.

        If spikes are not skipped, a spike raises an error, which stops training.
        """
        assert step.gradient_norm is not None
        loss = self.world.add_up({"loss": float(torch.stack(step.objectives).sum()) / self.world.size})["loss"]
        spike = self.find_spike(loss, float(step.gradient_norm))
        if spike is None:
            return True
        packs = describe_packs(step.packs)
        if not self.skip:
            raise PretuneError(
                f"training stopped at step {step.number}: {spike} ({packs}); lower the learning rate, or set monitor.on_spike=skip"
            )
        log_info(f"skipped the update of step {step.number}: {spike} ({packs})")
        return False

    def find_spike(self, loss: float, norm: float) -> str | None:
        """Return a description of the spike if the loss or the gradient norm is a spike or not finite; else None.

        Values without a spike are added to the running means.
        """
        values = {"loss": loss, "gradient norm": norm}
        for name, value in values.items():
            if not math.isfinite(value):
                return f"the {name} is not a number"
            mean = self.running_means.get(name)
            if self.seen >= WARMUP and mean and value > self.factor * mean:
                return f"the {name} is {value:.3g}, {value / mean:.1f} times its running mean"
        for name, value in values.items():
            self.running_means[name] = DECAY * self.running_means.get(name, value) + (1 - DECAY) * value
        self.seen += 1
        return None

    def state(self) -> dict[str, Any]:
        """Return the running means of loss and gradient norm, and the number of steps, for a checkpoint."""
        return {**self.running_means, "seen": self.seen}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Restore the running means of loss and gradient norm from a checkpoint."""
        self.running_means = {name: value for name, value in state.items() if name != "seen"}
        self.seen = int(state.get("seen", 0))
