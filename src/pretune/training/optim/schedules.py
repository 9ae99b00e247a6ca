"""Learning rate schedules over the budget, each with a linear warmup unless noted.

linear               linear decay
cosine               cosine decay
constant             no decay
inverse-sqrt         decay with the inverse square root of the time (the Transformer; Vaswani et al., 2017)
slanted-triangular   linear from the final rate to the peak and back (Howard and Ruder, 2018)
one-cycle            along a cosine from 1/25 of the peak, then cosine decay (Smith, 2018)
warmup-stable-decay  constant, with a linear decay at the end
"""

from __future__ import annotations

import math

from pretune.training.recipe_sections import Schedule

START = 1 / 25  # initial rate of one-cycle, relative to the peak


def lr_factor(schedule: Schedule, before: float, after: float) -> float:
    """Return the learning rate of one step as a fraction of the peak learning rate.

    The step moves the training progress from `before` to `after`, both from 0 to 1.

    >>> lr_factor(Schedule("linear", warmup_ratio=0.5, min_lr_ratio=0.0), 0.0, 0.25)
    0.5
    """
    warmup, final = schedule.warmup_ratio or 0.0, schedule.min_lr_ratio or 0.0
    if after < warmup:
        up = after / warmup
        match schedule.kind:
            case "slanted-triangular":
                return final + (1.0 - final) * up
            case "one-cycle":
                return START + (1.0 - START) * _cosine(1.0 - up)
        return up
    left = min(1.0, (1.0 - before) / (1.0 - warmup)) if warmup < 1.0 else 0.0  # 1 at the peak, 0 at the end
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":
            return math.sqrt(warmup / after) if warmup > 0.0 else 1.0
        case "cosine" | "one-cycle":
            return final + (1.0 - final) * _cosine(1.0 - left)
        case "warmup-stable-decay":
            decay = schedule.decay_ratio or 1.0
            return final + (1.0 - final) * min(1.0, (1.0 - before) / decay)
    return final + (1.0 - final) * left


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * share))
