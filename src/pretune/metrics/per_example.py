"""Score answers one by one, each against the expected answer of its example, for error analysis and calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.metrics.coreference import coreference_metrics
from pretune.metrics.question_answering import answer_f1, exact_match_and_f1, gold_texts
from pretune.metrics.ranking import query_metrics
from pretune.text.examples.tag_schemes import convert_tags

Answer = dict[str, Any]


@dataclass(frozen=True)
class ScoredAnswer:
    """A model's answer to one example, with the expected answer and a score (1 is best).

    `row` is the index of the example, and `probability` the probability of the answer according to the model, if known.
    """

    row: int  # index of the example
    expected: str
    answer: str
    score: float  # 1 for a correct answer, less for a worse one
    probability: float | None = None  # the model's probability of its answer


def score_classes(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score predicted labels and sets of labels for each example.

    A label gets 1 if it is correct, else 0; a set of labels (multi-label classification) gets its F1.
    """
    pairs = enumerate(zip(examples.labels, answers, strict=True))
    if task.multi_label:
        return [
            ScoredAnswer(row, join_names(labels), join_names(answer["labels"]), set_f1(labels, answer["labels"]))
            for row, (labels, answer) in pairs
        ]
    return [
        ScoredAnswer(row, label, answer["label"], float(label == answer["label"]), answer["probability"])
        for row, (label, answer) in pairs
    ]


def set_f1(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the F1 of two sets, given as lists without duplicates; 1 if both are empty.

    >>> set_f1(["a", "b"], ["b"])
    0.6666666666666666
    """
    return 2 * len({*expected} & {*predicted}) / (len(expected) + len(predicted)) if expected or predicted else 1.0


def join_names(names: Iterable[str]) -> str:
    """Return names as text, separated by commas; a dash if there are none."""
    return ", ".join(names) or "–"


def score_tags(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each tagged sentence by the share of its words with correct tags.

    The expected and predicted answers in the results show only the words with wrong tags.
    """
    scored = []
    for row, (words, tags, answer) in enumerate(zip(examples.words, examples.tags, answers, strict=True)):
        both = convert_tags(tags, task.written), answer["tags"]
        wrong = [i for i, (a, b) in enumerate(zip(*both, strict=True)) if a != b]
        expected, predicted = (join_names(f"{words[i]} {side[i]}" for i in wrong) for side in both)
        scored.append(ScoredAnswer(row, expected, predicted, 1 - len(wrong) / max(1, len(words))))
    return scored


def score_clusters(answers: Sequence[Answer], examples: Any) -> list[ScoredAnswer]:
    """Score the predicted clusters of each document by the mean F1 of MUC, B³ and CEAF-φ4.

    A document without coreferent mentions gets 1 if no clusters are predicted.
    """
    scored = []
    for row, (words, gold, answer) in enumerate(zip(examples.words, examples.clusters, answers, strict=True)):
        guess = answer["clusters"]
        score = coreference_metrics([gold], [guess]).compute()["conll_f1"] if gold or guess else 1.0
        expected, predicted = (
            "; ".join(" = ".join(" ".join(words[first : last + 1]) for first, last in cluster) for cluster in side)
            or "–"
            for side in (gold, guess)
        )
        scored.append(ScoredAnswer(row, expected, predicted, score))
    return scored


def score_extracted(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each answer extracted from a passage by its highest word F1 with any of the expected answers."""
    return _score_by_word_f1(answers, gold_texts(examples))


def score_entities(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each entity chosen for a cloze query by its highest word F1 with any of the expected answers."""
    return _score_by_word_f1(answers, [group.gold_answers for group in examples.groups])


def _score_by_word_f1(answers: Sequence[Answer], golds: Sequence[Sequence[str]]) -> list[ScoredAnswer]:
    """Score each answer by its highest word F1 with any gold answer; `golds` has the gold answers of each example."""
    return [
        ScoredAnswer(
            row,
            " / ".join(dict.fromkeys(texts)) or "no answer",
            answer["answer"] or "no answer",
            exact_match_and_f1(texts, answer["answer"])[1],
            answer["probability"],
        )
        for row, (answer, texts) in enumerate(zip(answers, golds, strict=True))
    ]


def score_texts(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each generated text by its word F1 with the expected text of the example."""
    pairs = enumerate(zip(examples.labels, (answer["answer"] for answer in answers), strict=True))
    return [ScoredAnswer(row, expected, text, answer_f1(expected, text)) for row, (expected, text) in pairs]


def score_choices(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each multiple-choice answer with 1 for a correct choice, else with 0."""
    return [
        ScoredAnswer(
            row,
            " / ".join(group.names[i] for i in group.correct),
            answer["answer"],
            float(answer["choice"] in group.correct),
            answer["probability"],
        )
        for row, (group, answer) in enumerate(zip(examples.groups, answers, strict=True))
    ]


def score_numbers(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each predicted number by 1 - |error| / standard deviation of the expected numbers."""
    expected, predicted = np.array(examples.labels), np.array([answer["value"] for answer in answers])
    return _score_by_error(expected, predicted, np.abs(expected - predicted) / (expected.std() or 1.0))


def score_similarities(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score predicted similarities of text pairs, or retrieval if the pairs have no labels.

    A labeled pair gets 1 - |error|, after expected and predicted similarities are standardized (mean 0, variance 1). An
    unlabeled pair gets the reciprocal of the rank at which its second text is retrieved.
    """
    if examples.labels is None:
        return [ScoredAnswer(row, "place 1", f"place {a['place']}", 1 / a["place"]) for row, a in enumerate(answers)]
    expected, predicted = np.array(examples.labels), np.array([answer["similarity"] for answer in answers])
    first, second = ((x - x.mean()) / (x.std() or 1.0) for x in (expected, predicted))
    return _score_by_error(expected, predicted, np.abs(first - second))


def _score_by_error(expected: Any, predicted: Any, errors: Any) -> list[ScoredAnswer]:
    rows = enumerate(zip(expected, predicted, errors, strict=True))
    return [ScoredAnswer(row, f"{x:g}", f"{y:.4g}", 1 - float(error)) for row, (x, y, error) in rows]


def score_rankings(answers: Sequence[Answer], examples: Any, task: Any) -> list[ScoredAnswer]:
    """Score each query by the nDCG of the ranking of its candidates.

    The results show the most relevant candidate as expected, and the candidate ranked first as predicted answer.
    Queries without a relevant candidate are left out.
    """
    queries, relevances = examples.queries, np.array(examples.labels)
    scores = np.array([answer["score"] for answer in answers])
    scored = []
    for query in np.unique(queries):
        rows = np.flatnonzero(queries == query)
        if relevances[rows].any():
            best, first = rows[relevances[rows].argmax()], rows[scores[rows].argmax()]
            ndcg = query_metrics(queries[rows], relevances[rows], scores[rows]).compute()["ndcg@10"]
            scored.append(ScoredAnswer(int(best), examples.pairs[best], examples.pairs[first], ndcg))
    return scored
