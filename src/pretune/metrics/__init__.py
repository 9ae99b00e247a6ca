"""Scores, one file a kind of metric; `score` finds those of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.metrics.classification import most_frequent, score_classes
from pretune.metrics.texts import score_texts
from pretune.objectives.named import kind_of

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
    return SCORES[kind_of(task)](answers, examples, task)


def constant(task: Any, learned: Any, judged: Any) -> float:
    """The deciding metric of whoever always gives the answer that is most frequent in learning; 0 where there is none."""
    if not getattr(task, "labels", ()):
        return 0.0
    usual = most_frequent(learned.labels)
    return score(task, [{"label": usual, "answer": usual}] * len(judged), judged)[task.decides]
