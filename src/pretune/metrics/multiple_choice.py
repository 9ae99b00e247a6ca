"""The accuracy of multiple choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import Parts, means


def choice_parts(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> Parts:
    """Return the metric of the task `choose`: accuracy."""
    pairs = zip(answers, examples.groups, strict=True)
    return means(np.array([[float(answer["choice"] in group.right)] for answer, group in pairs]), "accuracy")
