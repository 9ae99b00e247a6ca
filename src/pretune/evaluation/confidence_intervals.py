"""Bootstrap confidence intervals of metrics (Efron, 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics import bootstrap_scores

ROUNDS = 200
COVERAGE = 0.95


def bootstrap_intervals(
    task: Any, answers: Sequence[dict[str, Any]], examples: Any, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap confidence interval (low, high) of each metric of the answers to `examples`."""
    found: dict[str, list[float]] = {}
    for scores in bootstrap_scores(task, answers, examples, np.random.default_rng(seed), ROUNDS):
        for name, value in scores.items():
            found.setdefault(name, []).append(value)
    tail = 100 * (1 - COVERAGE) / 2
    return {name: (float(np.percentile(x, tail)), float(np.percentile(x, 100 - tail))) for name, x in found.items()}
