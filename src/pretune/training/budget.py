"""The clock of a training run, which measures how much of the budget is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from pretune.training.recipe_sections import Budget


@dataclass
class Clock:
    """A counter of the steps, tokens, FLOPs, and seconds that a training run has used.

    The seconds of evaluations and of compilation are counted apart from those of training.
    """

    budget: Budget
    used: dict[str, float] = field(default_factory=lambda: {"steps": 0.0, "tokens": 0.0, "flops": 0.0, "seconds": 0.0})
    now: Callable[[], float] = time.monotonic
    pauses: dict[str, float] = field(default_factory=dict)  # their seconds since the start of this process, by purpose

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start to measure the training time, after all that comes before the first step."""
        self._zero = self.now() - self.used["seconds"]  # when an uninterrupted training would have started

    def elapsed(self) -> float:
        """Return the training time so far in seconds, not counting the time of pauses."""
        return self.now() - self._zero

    @contextmanager
    def paused(self, purpose: Literal["evaluation", "compilation"]) -> Iterator[None]:
        """Return a context manager that stops the training clock; the time in its block is added to `pauses[purpose]`."""
        started = self.now()
        try:
            yield
        finally:
            duration = self.now() - started
            self._zero += duration
            self.pauses[purpose] = self.pauses.get(purpose, 0.0) + duration

    def add(self, tokens: float, flops: float, seconds: float) -> None:
        """Count one step of `tokens` tokens and `flops` FLOPs; `seconds` is the total training time so far."""
        self.used["steps"] += 1
        self.used["tokens"] += tokens
        self.used["flops"] += flops
        self.used["seconds"] = seconds

    def progress(self, tokens: float = 0.0, flops: float = 0.0, steps: float = 0.0, seconds: float = 0.0) -> float:
        """Return the used share of the training budget, from 0 to 1, by the limit that is closest to being reached.

        The amounts `tokens`, `flops`, `steps`, and `seconds` are added to those used so far.
        """
        more = {"steps": steps, "tokens": tokens, "flops": flops, "seconds": seconds}
        shares = [(self.used[name] + more[name]) / limit for name, limit in self.budget.limits.items()]
        return min(1.0, max(shares, default=0.0))

    @property
    def spent(self) -> bool:
        """Whether the training budget is used up."""
        return self.progress() >= 1.0

    def due(self, every: int | None, ahead: int = 0) -> bool:
        """Return whether an event that recurs every `every` steps, such as an evaluation, is due.

        With `ahead`, return whether it is due that many steps from now. With 0 or None for `every`, it is never due.
        """
        return bool(every) and (int(self.used["steps"]) + ahead) % (every or 1) == 0
