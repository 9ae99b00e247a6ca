"""The clock of a training: how much of its budget is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pretune.training.settings import Budget


@dataclass
class Clock:
    """Counts what a training has used so far: steps, tokens, floating-point operations and seconds.

    Seconds are the time that steps take, the making of their batches included. Evaluation is not training: its time is counted
    apart, in `evaluation`. A resumed training goes on from what was saved.
    """

    budget: Budget
    used: dict[str, float] = field(default_factory=lambda: {"steps": 0.0, "tokens": 0.0, "flops": 0.0, "seconds": 0.0})
    now: Callable[[], float] = time.monotonic
    evaluation: float = 0.0  # seconds spent on evaluation since the start of this process

    def __post_init__(self) -> None:
        self._zero = self.now() - self.used["seconds"]  # when a training that never stopped would have begun

    def elapsed(self) -> float:
        """Return the seconds of training so far."""
        return self.now() - self._zero

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count the time inside the block as evaluation, not as training."""
        began = self.now()
        try:
            yield
        finally:
            took = self.now() - began
            self._zero += took
            self.evaluation += took

    def add(self, tokens: float, flops: float, seconds: float) -> None:
        """Add a step; `seconds` is the time since the training began, on which all processes agreed."""
        self.used["steps"] += 1
        self.used["tokens"] += tokens
        self.used["flops"] += flops
        self.used["seconds"] = seconds

    def progress(self, tokens: float = 0.0, flops: float = 0.0, steps: float = 0.0, seconds: float = 0.0) -> float:
        """Return the share of the budget that is used, or will be after so much more; 0 to 1."""
        more = {"steps": steps, "tokens": tokens, "flops": flops, "seconds": seconds}
        shares = [(self.used[name] + more[name]) / limit for name, limit in self.budget.limits.items()]
        return min(1.0, max(shares, default=0.0))

    @property
    def spent(self) -> bool:
        """Whether a limit is reached."""
        return self.progress() >= 1.0
