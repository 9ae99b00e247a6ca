"""How well gaps are filled: the answers that are right, and the words they share with a right one, as ReCoRD counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.metrics.answers import answer_metrics


def score_gaps(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `entity`: the best over the right answers of each query."""
    return answer_metrics([group.golds for group in examples.groups], [answer["answer"] for answer in answers])
