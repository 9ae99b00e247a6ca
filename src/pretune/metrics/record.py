"""How well gaps are filled: the answers that are right, and the words they share with a right one, as ReCoRD counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pretune.metrics.additive import Parts
from pretune.metrics.question_answering import answer_parts


def gap_parts(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> Parts:
    """The metrics of `entity`: the best over the right answers of each query."""
    return answer_parts([group.golds for group in examples.groups], [answer["answer"] for answer in answers])
