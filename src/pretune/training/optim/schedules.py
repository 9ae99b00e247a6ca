"""How the learning rate follows the budget.

linear         up, then down in a straight line
cosine         up, then down along half a cosine
constant       up, then level
inverse-sqrt   up, then with one over the square root of the time (the Transformer; Vaswani et al., 2017)
triangular     from the final share up and back again in straight lines (slanted; Howard and Ruder, 2018)
one-cycle      from 1/25 up along a cosine, then down along another (Smith, 2018)
stable         up, level, and down in a straight line at the end (warm-up, stable, decay)
"""

from __future__ import annotations

import math

from pretune.training.settings import Schedule

START = 1 / 25  # of one-cycle


def rate_factor(schedule: Schedule, before: float, after: float) -> float:
    """The factor on the peak rate for a step that takes the budget from the share `before` to `after`.

    >>> rate_factor(Schedule("linear", warmup=0.5, final=0.0), 0.0, 0.25)
    0.5
    """
    warmup, final = schedule.warmup or 0.0, schedule.final or 0.0
    if after < warmup:
        up = after / warmup
        match schedule.kind:
            case "triangular":
                return final + (1.0 - final) * up
            case "one-cycle":
                return START + (1.0 - START) * _wave(1.0 - up)
        return up
    left = min(1.0, (1.0 - before) / (1.0 - warmup)) if warmup < 1.0 else 0.0  # 1 at the peak, 0 at the end
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":
            return math.sqrt(warmup / after) if warmup > 0.0 else 1.0
        case "cosine" | "one-cycle":
            return final + (1.0 - final) * _wave(1.0 - left)
        case "stable":
            decay = schedule.decay or 1.0
            return final + (1.0 - final) * min(1.0, (1.0 - before) / decay)
    return final + (1.0 - final) * left


def _wave(way: float) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * way))
