"""How the learning rate follows the budget."""

from __future__ import annotations

from pretune.training.settings import Schedule


def rate_factor(schedule: Schedule, before: float, after: float) -> float:
    """The factor on the peak rate for a step that takes the budget from the share `before` to `after`.

    >>> rate_factor(Schedule("linear", warmup=0.5, final=0.0), 0.0, 0.25)
    0.5
    """
    warmup, final = schedule.warmup or 0.0, schedule.final or 0.0
    if after < warmup:
        return after / warmup
    if schedule.kind == "constant":
        return 1.0
    left = (1.0 - before) / (1.0 - warmup) if warmup < 1.0 else 0.0
    return final + (1.0 - final) * min(1.0, left)
