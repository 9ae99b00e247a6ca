"""Scores, one file a kind of metric; `score` finds those of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.metrics.answers import choose_threshold, score_answers
from pretune.metrics.choices import score_choices
from pretune.metrics.classification import most_frequent, score_classes
from pretune.metrics.entities import score_tags
from pretune.metrics.gaps import score_gaps
from pretune.metrics.ranking import score_ranking
from pretune.metrics.regression import score_numbers, score_similarities

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCORES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], dict[str, float]]] = {
    "classify": score_classes,
    "regress": score_numbers,
    "choose": score_choices,
    "match": score_classes,
    "rank": score_ranking,
    "contrast": score_similarities,
    "entity": score_gaps,
    "tag": score_tags,
    "answer": score_answers,
}
CHOICES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], dict[str, float]]] = {"answer": choose_threshold}


def score(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """The metrics of a task: its answers to some examples beside the right ones.

    >>> from pretune.objectives.classify import Classify
    >>> from pretune.text.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, ["…", "…"], labels=["a", "b"])
    >>> score(Classify(labels=("a", "b")), [{"label": "a"}, {"label": "a"}], rows)["accuracy"]
    0.5
    """
    return SCORES[task.name](answers, examples, task)


def constant(task: Any, learned: Any, judged: Any) -> float:
    """The deciding metric of whoever always gives the answer that is most frequent in learning; 0 where there is none."""
    if task.name != "classify":
        return 0.0
    usual = most_frequent(learned.labels)
    return score(task, [{"label": usual}] * len(judged), judged)[task.decides]


def choose(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """Options of a task with which its answers to some examples would be best; most tasks have none to choose."""
    return CHOICES[task.name](answers, examples, task) if task.name in CHOICES else {}
