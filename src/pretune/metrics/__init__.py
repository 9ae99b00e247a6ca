"""Scores, one file a kind of metric; `score` finds those of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.metrics.classification import score_classes
from pretune.metrics.texts import score_texts
from pretune.objectives.named import Named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCORES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], dict[str, float]]] = {
    "classify": score_classes,
    "prompt": score_classes,
    "generate": score_texts,
}


def score(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """The metrics of a task: its answers to some examples beside the right ones.

    >>> from pretune.objectives.classify import Classify
    >>> from pretune.text.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, ["…", "…"], labels=["a", "b"])
    >>> score(Classify(labels=("a", "b")), [{"label": "a"}, {"label": "a"}], rows)["accuracy"]
    0.5
    """
    return SCORES[task.kind if isinstance(task, Named) else task.name](answers, examples, task)
