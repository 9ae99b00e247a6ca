"""Scores, one file a kind of metric; `score` finds those of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.metrics.additive import Parts
from pretune.metrics.classification import score_classes
from pretune.metrics.generated_text import score_closed, text_parts
from pretune.metrics.majority_baseline import constant_answers
from pretune.metrics.multiple_choice import choice_parts
from pretune.metrics.per_example import (
    Judged,
    judge_answers,
    judge_choices,
    judge_classes,
    judge_gaps,
    judge_numbers,
    judge_ranking,
    judge_similarities,
    judge_tags,
    judge_texts,
)
from pretune.metrics.question_answering import choose_threshold, question_parts
from pretune.metrics.ranking import ranking_parts
from pretune.metrics.record import gap_parts
from pretune.metrics.regression import score_numbers, score_similarities
from pretune.metrics.sequence_labeling import tag_parts
from pretune.objectives.tasks.renamed_task import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

SCORES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], dict[str, float]]] = {
    "classify": score_classes,
    "regress": score_numbers,
    "match": score_classes,
    "contrast": score_similarities,
    "prompt": score_classes,
    "generate": score_closed,
}
PARTS: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], Parts]] = {
    "tag": tag_parts,
    "answer": question_parts,
    "choose": choice_parts,
    "rank": ranking_parts,
    "entity": gap_parts,
    "generate": text_parts,
}
JUDGES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], list[Judged]]] = {
    "classify": judge_classes,
    "tag": judge_tags,
    "answer": judge_answers,
    "regress": judge_numbers,
    "choose": judge_choices,
    "match": judge_classes,
    "rank": judge_ranking,
    "contrast": judge_similarities,
    "entity": judge_gaps,
    "prompt": judge_classes,
    "generate": judge_texts,
}
CHOICES: dict[str, Callable[[Sequence[dict[str, Any]], Any, Any], dict[str, float]]] = {"answer": choose_threshold}


def score(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """The metrics of a task: its answers to some examples beside the right ones.

    >>> from pretune.objectives.tasks.classify import Classify
    >>> from pretune.text.examples.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, ["…", "…"], labels=["a", "b"])
    >>> score(Classify(labels=("a", "b")), [{"label": "a"}, {"label": "a"}], rows)["accuracy"]
    0.5
    """
    parts = parts_of(task, answers, examples)
    found = parts.whole() if parts is not None else SCORES[kind_of(task)](answers, examples, task)
    first = (
        {task.decides: found[task.decides]} if task.decides in found else {}
    )  # what models are compared by comes first
    return {**first, **found}


def has_classes(task: Any) -> bool:
    """Return whether the label of an example is one of several classes."""
    match kind_of(task):
        case "classify":
            return not task.multi
        case "generate":
            return bool(task.closed)
        case kind:
            return kind in ("prompt", "match")


def positive_class(task: Any) -> str | None:
    """Return the class that `f1` is of; None for a task that does not have two classes."""
    return str(task.labels[1]) if has_classes(task) and len(task.labels) == 2 else None


def parts_of(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> Parts | None:
    """The metrics of a task by example, where they are made of sums; those of a classifier are counted anew."""
    made = None if getattr(task, "closed", False) else PARTS.get(kind_of(task))
    return made(answers, examples, task) if made is not None else None


def scores_of_draws(
    task: Any, answers: Sequence[dict[str, Any]], examples: Any, chance: np.random.Generator, rounds: int
) -> Iterator[dict[str, float]]:
    """The metrics of as many examples, drawn by chance, with some of them several times; of `rank`, as many queries."""
    parts = parts_of(task, answers, examples)
    if parts is not None:
        units = len(parts.values)
        yield from (parts.of(chance.integers(0, units, units)) for _ in range(rounds if units else 0))
        return
    for _ in range(rounds):
        rows = chance.integers(0, len(answers), len(answers)).tolist()
        yield score(task, [answers[row] for row in rows], examples.take(rows))


def constant(task: Any, learned: Any, judged: Any) -> float:
    """The deciding metric of whoever always gives the answer that is usual in learning; 0 where there is none."""
    found = constant_answers(task, learned, judged)
    return 0.0 if found is None else score(task, found[1], judged)[task.decides]


def choose(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> dict[str, float]:
    """Options of a task with which its answers to some examples would be best; most tasks have none to choose."""
    choice = CHOICES.get(kind_of(task))
    return choice(answers, examples, task) if choice is not None else {}


def judge_each(task: Any, answers: Sequence[dict[str, Any]], examples: Any) -> list[Judged]:
    """Every answer beside the right one; of a task that compares examples, one for each comparison."""
    return JUDGES[kind_of(task)](answers, examples, task)
