"""Scaling a published recipe down to a smaller budget: fewer steps, and smaller batches if few steps would be left.

Warmup, sequence length stages, and the like are shares of the budget, and do not change. Batches are halved until there are
LEAST_STEPS steps. Learning rates are scaled with the batch: with its square root for adaptive optimizers (Krizhevsky, 2014;
You et al., 2020; Malladi et al., 2022, arXiv:2205.10287), in proportion for SGD (Goyal et al., 2017).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from pretune.runtime.errors import PretuneError, quote
from pretune.training.recipe_sections import AUTO, Batching, Budget, Optimizer, Schedule

LEAST_STEPS = 1000  # the batch is halved while there would be fewer steps …
LEAST_SEQUENCES = 8  # … and the batch would still hold this many sequences
GUESSED_PEAK_FLOPS = 1e11  # peak FLOPs per second of a device that was not measured
UTILIZATION = 0.3  # of the peak, to estimate how many tokens a time limit allows
LINEAR = ("sgd", "asgd")

UNITS: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("seconds", 60)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600)),
    **dict.fromkeys(("d", "day", "days"), ("seconds", 86400)),
    **dict.fromkeys(("step", "steps"), ("steps", 1)),
    **dict.fromkeys(("token", "tokens"), ("tokens", 1)),
    **dict.fromkeys(("flop", "flops"), ("flops", 1)),
}


@dataclass(frozen=True)
class ScalableRecipe:
    """The sections of a pretraining recipe that are needed to scale it down to a smaller budget."""

    budget: Budget
    optimizer: Optimizer
    schedule: Schedule
    batch: Batching


def parse_budget(text: str, option: str = "--scale-to") -> Budget:
    """Return the budget that a number with a unit, such as "10min", describes.

    `option` is the command-line option that error messages name.

    >>> parse_budget("10min").seconds, parse_budget("1e9 tokens").tokens
    (600.0, 1000000000.0)
    """
    match = re.fullmatch(r"([\d_.]+(?:[eE][+-]?\d+)?)\s*([a-zA-Z]+)", text.strip())
    try:
        unit, factor = UNITS[match[2].lower()] if match else ("", 0)
        amount = float(match[1]) * factor if match else 0.0
    except (KeyError, ValueError):
        match = None
    if match is None or not math.isfinite(amount):
        raise PretuneError(
            f"{option} {quote(text)} is not a budget; give one such as 10min, 2h, 500steps, 1e9tokens, or 1e15flops"
        )
    return _budget({unit: amount})


def _budget(limits: dict[str, float]) -> Budget:
    """Return a training budget, given its limits by name; the number of steps is rounded down, but is at least 1."""
    whole: dict[str, Any] = {name: max(1, int(x)) if name == "steps" else x for name, x in limits.items()}
    return Budget(**whole)


def scale_to(
    limit: Budget, recipe: ScalableRecipe, *, flops_per_token: float, flops_per_second: float, batch: int | None = None
) -> tuple[ScalableRecipe, str]:
    """Return a recipe scaled down to the budget `limit`, and a description of the changes.

    The result never has a larger budget than the recipe. If few steps would be left, batches get smaller, and learning
    rates with them; `batch` fixes the number of tokens in a batch instead.

    >>> bert = ScalableRecipe(Budget(steps=1_000_000), Optimizer("adamw", lr=1e-4), Schedule("linear", 0.01), Batching(131072, 128))
    >>> scale_to(Budget(tokens=1e7), bert, flops_per_token=1.0, flops_per_second=1.0)[0].batch.tokens
    8192
    """
    whole = recipe.batch.tokens or 1  # tokens per step
    own = recipe.budget.limits
    if "steps" in own:  # counted as tokens, because smaller batches need more steps
        own["tokens"] = min(own.get("tokens", float("inf")), own.pop("steps") * whole)
    most = own.get("tokens", float("inf"))
    (name, amount), *_ = limit.limits.items()
    tokens_per_unit = {
        "tokens": 1.0,
        "flops": 1 / flops_per_token,
        "seconds": flops_per_second / flops_per_token,
        "steps": batch or whole,
    }
    if name == "steps":
        amount = max(1, min(amount, most // (batch or whole)))
        own.pop("tokens", None)
    amount = min(amount, own.pop(name, amount))
    tokens = min(amount * tokens_per_unit[name], most)
    share = batch or whole
    if name != "steps" and batch is None:
        longest = max([length for _, length in recipe.batch.length_schedule or ()] or [recipe.batch.max_length or 1])
        while tokens / share < LEAST_STEPS and share // 2 >= LEAST_SEQUENCES * longest:
            share //= 2
    optimizer, rates = _scale_rates(recipe.optimizer, share / whole)
    budget = _budget({name: amount} | own)
    scaled = replace(recipe, budget=budget, optimizer=optimizer, batch=replace(recipe.batch, tokens=share))
    steps = max(1, round(tokens / share))
    warmup = recipe.schedule.warmup_ratio or 0.0
    about = "" if name == "steps" else "about "
    before = f"{round(most / whole):,} of " if most < float("inf") else ""
    return scaled, (
        f"scaled to {amount:,g} {name}: {about}{steps:,} steps of {share:,} tokens (the recipe has {before}{whole:,}), "
        f"of which {about}{round(warmup * steps):,} are warmup (a share of {warmup:.3g}, as in the recipe)" + rates
    )


def _scale_rates(optimizer: Optimizer, factor: float) -> tuple[Optimizer, str]:
    """Return an optimizer with learning rates for a batch `factor` times as large, and a description of the change."""
    if factor == 1 or optimizer.reference_batch_size is not None or optimizer.lr == AUTO:
        return optimizer, ""
    rule = "in proportion to" if optimizer.name in LINEAR else "with the square root of"
    by = factor if optimizer.name in LINEAR else factor**0.5
    lr, matrix_lr = (None if rate is None else float(f"{rate * by:.3g}") for rate in (optimizer.lr, optimizer.muon_lr))
    return replace(optimizer, lr=lr, muon_lr=matrix_lr), (
        f"\nlearning rates are scaled {rule} the batch: by {by:.3g}, to lr {lr:g}" if lr is not None else ""
    )
