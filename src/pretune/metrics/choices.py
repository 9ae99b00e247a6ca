"""How good choices are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def score_choices(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `choose`: how often the choice is right."""
    pairs = zip(answers, examples.groups, strict=True)
    return {"accuracy": float(np.mean([answer["choice"] in group.right for answer, group in pairs]))}
