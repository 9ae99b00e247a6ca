"""A guard against bad steps: losses and gradients that are no numbers, or far larger than they were."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MEMORY = 0.98  # of the running means
CALM = 20  # steps before anything counts as unusual


@dataclass
class Guard:
    """Tells an unusual step by the loss and the gradient norm of those before it.

    >>> guard = Guard(factor=3.0)
    >>> all(guard.trouble(2.0, 1.0) is None for _ in range(30))
    True
    >>> guard.trouble(2.0, 9.0)
    'the gradient norm is 9, 9.0 times what it was'
    """

    factor: float
    usual: dict[str, float] = field(default_factory=dict)
    seen: int = 0

    def trouble(self, loss: float, norm: float) -> str | None:
        """What is wrong with a step, if something is; a bad step leaves no trace in what is usual."""
        values = {"loss": loss, "gradient norm": norm}
        for name, value in values.items():
            if not math.isfinite(value):
                return f"the {name} is not a number"
            usual = self.usual.get(name)
            if self.seen >= CALM and usual and value > self.factor * usual:
                return f"the {name} is {value:.3g}, {value / usual:.1f} times what it was"
        for name, value in values.items():
            self.usual[name] = MEMORY * self.usual.get(name, value) + (1 - MEMORY) * value
        self.seen += 1
        return None

    def state(self) -> dict[str, float]:
        """For checkpoints."""
        return {**self.usual, "seen": self.seen}

    def restore(self, state: dict[str, float]) -> None:
        """The inverse of `state`."""
        self.usual = {name: value for name, value in state.items() if name != "seen"}
        self.seen = int(state.get("seen", 0))
