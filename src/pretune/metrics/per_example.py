"""Answers one by one: each beside the right one, and how good it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.metrics.question_answering import answer_f1, exact_match_and_f1
from pretune.metrics.ranking import query_metrics
from pretune.text.examples.tag_schemes import convert_tags

Answer = dict[str, Any]


@dataclass(frozen=True)
class JudgedAnswer:
    """What was answered to an example."""

    row: int  # the example
    right: str
    answer: str
    good: float  # 1 is right, and nothing is better
    sure: float | None = None  # the probability of the answer


def judge_classes(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `classify`, `match` and `prompt`; of several labels, F1."""
    pairs = enumerate(zip(examples.labels, answers, strict=True))
    if not task.multi_label:
        return [
            JudgedAnswer(row, right, answer["label"], float(right == answer["label"]), answer["probability"])
            for row, (right, answer) in pairs
        ]
    return [
        JudgedAnswer(row, listed(right), listed(answer["labels"]), same_items(right, answer["labels"]))
        for row, (right, answer) in pairs
    ]


def same_items(right: Sequence[str], found: Sequence[str]) -> float:
    """F1 of two sets; of two empty ones 1.

    >>> same_items(["a", "b"], ["b"])
    0.6666666666666666
    """
    return 2 * len({*right} & {*found}) / (len(right) + len(found)) if right or found else 1.0


def listed(names: Iterable[str]) -> str:
    """Names for people."""
    return ", ".join(names) or "–"


def judge_tags(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `tag`: the share of words that are right; those are told that are not."""
    found = []
    for row, (words, tags, answer) in enumerate(zip(examples.words, examples.tags, answers, strict=True)):
        rights = convert_tags(tags, task.written)
        wrong = [i for i, (right, tag) in enumerate(zip(rights, answer["tags"], strict=True)) if right != tag]
        right, said = (listed(f"{words[i]} {side[i]}" for i in wrong) for side in (rights, answer["tags"]))
        found.append(JudgedAnswer(row, right, said, 1 - len(wrong) / max(1, len(words))))
    return found


def judge_answers(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `answer`: F1 of its words."""
    golds = [[span.text for span in spans] for spans in examples.answers]
    return _texts(answers, golds)


def judge_gaps(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `entity`: F1 of its words."""
    return _texts(answers, [group.golds for group in examples.groups])


def _texts(answers: Sequence[Answer], golds: Sequence[Sequence[str]]) -> list[JudgedAnswer]:
    return [
        JudgedAnswer(
            row,
            " / ".join(dict.fromkeys(right)) or "no answer",
            answer["answer"] or "no answer",
            exact_match_and_f1(right, answer["answer"])[1],
            answer["probability"],
        )
        for row, (answer, right) in enumerate(zip(answers, golds, strict=True))
    ]


def judge_texts(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `generate`: F1 of its words."""
    pairs = enumerate(zip(examples.labels, answers, strict=True))
    return [
        JudgedAnswer(row, right, answer["answer"], answer_f1(right, answer["answer"])) for row, (right, answer) in pairs
    ]


def judge_choices(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `choose`: right or not."""
    return [
        JudgedAnswer(
            row,
            " / ".join(group.names[i] for i in group.right),
            answer["answer"],
            float(answer["choice"] in group.right),
            answer["probability"],
        )
        for row, (group, answer) in enumerate(zip(examples.groups, answers, strict=True))
    ]


def judge_numbers(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `regress`: how far it is from right, in deviations of the right numbers."""
    right, said = np.array(examples.labels), np.array([answer["value"] for answer in answers])
    return _numbers(right, said, np.abs(right - said) / (right.std() or 1.0))


def judge_similarities(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `contrast`: how far it is from right, both in deviations; or the place of a text's own pair."""
    if examples.labels is None:
        return [JudgedAnswer(row, "place 1", f"place {a['place']}", 1 / a["place"]) for row, a in enumerate(answers)]
    right, said = np.array(examples.labels), np.array([answer["similarity"] for answer in answers])
    first, second = ((x - x.mean()) / (x.std() or 1.0) for x in (right, said))
    return _numbers(right, said, np.abs(first - second))


def _numbers(right: Any, said: Any, errors: Any) -> list[JudgedAnswer]:
    rows = enumerate(zip(right, said, errors, strict=True))
    return [JudgedAnswer(row, f"{x:g}", f"{y:.4g}", 1 - float(error)) for row, (x, y, error) in rows]


def judge_ranking(answers: Sequence[Answer], examples: Any, task: Any) -> list[JudgedAnswer]:
    """Of `rank`, a query each: nDCG; of the best candidate and the one that was put first."""
    queries, relevances = examples.queries, np.array(examples.labels)
    scores = np.array([answer["score"] for answer in answers])
    found = []
    for query in np.unique(queries):
        rows = np.flatnonzero(queries == query)
        if relevances[rows].any():
            best, first = rows[relevances[rows].argmax()], rows[scores[rows].argmax()]
            good = query_metrics(queries[rows], relevances[rows], scores[rows]).whole()["ndcg@10"]
            found.append(JudgedAnswer(int(best), examples.pairs[best], examples.pairs[first], good))
    return found
