"""The accuracy of multiple choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics, mean_metrics


def choice_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the metric of the task `choose`: accuracy."""
    pairs = zip(answers, examples.groups, strict=True)
    return mean_metrics(np.array([[float(answer["choice"] in group.right)] for answer, group in pairs]), "accuracy")
