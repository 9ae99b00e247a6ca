"""Cloze questions about entities: exact match and word F1, as ReCoRD computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.metrics.additive import AdditiveMetrics
from pretune.metrics.question_answering import answer_metrics


def entity_cloze_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the metrics of the task `entity`: for each query the best over its correct answers."""
    return answer_metrics([group.golds for group in examples.groups], [answer["answer"] for answer in answers])
