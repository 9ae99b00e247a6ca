"""Cloze questions about entities: exact match and word F1, as ReCoRD computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.metrics.additive import Parts
from pretune.metrics.question_answering import answer_parts


def gap_parts(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> Parts:
    """Return the metrics of the task `entity`: for each query the best over its correct answers."""
    return answer_parts([group.golds for group in examples.groups], [answer["answer"] for answer in answers])
