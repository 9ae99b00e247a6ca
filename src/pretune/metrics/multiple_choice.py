"""Compute the accuracy of multiple choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.metrics.additive import AdditiveMetrics, mean_metrics


def choice_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the accuracy of predicted choices (`answers`) on labeled multiple-choice examples (task `choose`)."""
    pairs = zip(answers, examples.groups, strict=True)
    return mean_metrics([[answer["choice"] in group.correct] for answer, group in pairs], "accuracy")
