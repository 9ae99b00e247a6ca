"""The clock that watches a budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pretune.training.settings import Budget


@dataclass
class Clock:
    """What a training has used so far. Seconds count while it runs; a resumed one goes on from where it was saved."""

    budget: Budget
    used: dict[str, float] = field(default_factory=lambda: {"steps": 0.0, "tokens": 0.0, "flops": 0.0, "seconds": 0.0})
    started: float = field(default_factory=time.monotonic)
    before: float = 0.0  # seconds used by earlier starts

    @classmethod
    def resumed(cls, budget: Budget, used: dict[str, float]) -> Clock:
        """A clock that goes on."""
        return cls(budget, dict(used), before=used["seconds"])

    def elapsed(self) -> float:
        """Seconds of training so far."""
        return self.before + time.monotonic() - self.started

    def add(self, tokens: float, flops: float, seconds: float) -> None:
        """A step was done; `seconds` is the time on which all processes agreed."""
        self.used["steps"] += 1
        self.used["tokens"] += tokens
        self.used["flops"] += flops
        self.used["seconds"] = seconds

    def progress(self, tokens: float = 0.0, flops: float = 0.0, steps: float = 0.0) -> float:
        """Share of the budget that is used, or will be after so much more; 0 to 1."""
        more = {"steps": steps, "tokens": tokens, "flops": flops, "seconds": 0.0}
        shares = [(self.used[name] + more[name]) / limit for name, limit in self.budget.limits.items()]
        return min(1.0, max(shares, default=0.0))

    @property
    def spent(self) -> bool:
        """Whether a limit is reached."""
        return self.progress() >= 1.0
