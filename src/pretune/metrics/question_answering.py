"""Compute exact match and word F1 of question answering as in SQuAD's script (Rajpurkar et al., 2018).

The script is described in arXiv:1806.03822.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Return a text in lower case without punctuation, English articles or extra spaces.

    >>> normalize("The  Eiffel Tower!")
    'eiffel tower'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def answer_f1(expected: str, predicted: str) -> float:
    """Return the F1 over the words of two answers.

    If one answer has no words, F1 is 1 if the other has none either, else 0.

    >>> answer_f1("the tall tower", "tall")
    0.6666666666666666
    """
    gold, guess = normalize(expected).split(), normalize(predicted).split()
    if not gold or not guess:
        return float(gold == guess)
    return 2 * (Counter(gold) & Counter(guess)).total() / (len(gold) + len(guess))


def exact_match_and_f1(expected: Sequence[str], predicted: str) -> tuple[float, float]:
    """Return the exact match and the word F1 of a predicted answer, each the highest over all expected answers.

    If there are no expected answers, the question is unanswerable, and the empty answer is correct.
    """
    golds = [text for text in expected if normalize(text)] or [""]
    exact = max(float(normalize(text) == normalize(predicted)) for text in golds)
    return exact, max(answer_f1(text, predicted) for text in golds)


def answer_metrics(expected: Sequence[Sequence[str]], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the exact match and F1 over all questions; `expected` has the expected answers of each question.

    If some questions are unanswerable, the metrics are also computed over the answerable and over the unanswerable
    questions.

    >>> answer_metrics([["in Paris", "Paris"], []], ["Paris", "Rome"]).compute()["exact_match"]
    0.5
    """
    rows = [(*exact_match_and_f1(golds, guess), 1.0) for golds, guess in zip(expected, predicted, strict=True)]
    scores = np.array(rows, dtype=np.float64).reshape(-1, 3)
    answerable = np.array([bool(golds) for golds in expected], dtype=bool)[:, None]
    names = [""] if answerable.all() else ["", "has_answer_", "no_answer_"]

    def from_sums(sums: Array) -> dict[str, float]:
        parts = {name: part for name, part in zip(names, sums.reshape(-1, 3), strict=True) if part[2]}
        return {f"{n}{m}": part[i] / part[2] for n, part in parts.items() for i, m in enumerate(("exact_match", "f1"))}

    return AdditiveMetrics(np.hstack([scores, scores * answerable, scores * ~answerable][: len(names)]), from_sums)


def question_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return exact match and word F1 of predicted answers (`answers`) to labeled questions (task `answer`)."""
    return answer_metrics(gold_texts(examples), [answer["answer"] for answer in answers])


def choose_threshold(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return {"threshold": x}, the threshold for predicting "no answer" with the highest F1 on labeled questions.

    The result is {} if all questions are answerable.
    """
    expected = gold_texts(examples)
    if all(expected):
        return {}
    best = [answer["candidates"][0]["answer"] if answer["candidates"] else "" for answer in answers]
    margins = np.array([answer["no_answer"] for answer in answers], dtype=np.float64)
    pairs = zip(expected, best, strict=True)
    gains = np.array([exact_match_and_f1(golds, guess)[1] - (not golds) for golds, guess in pairs])
    order = np.argsort(margins, kind="stable")
    margins, totals = margins[order], np.concatenate([[0.0], np.cumsum(gains[order])])
    # Questions with the lowest margins are answered; those with equal margins all or none.
    between = np.concatenate([[True], margins[1:] > margins[:-1], [True]])
    answered = int(np.where(between, totals, -np.inf).argmax())
    edges = np.concatenate([margins[:1] - 2, margins, margins[-1:] + 2])
    return {"threshold": float(edges[answered] + edges[answered + 1]) / 2}


def gold_texts(examples: Any) -> list[list[str]]:
    """Return the texts of the expected answers to each question in `examples`."""
    return [[span.text for span in spans] for spans in examples.answers]


def entity_cloze_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return exact match and F1 of entities chosen for cloze queries (ReCoRD).

    Both are the highest over the gold answers of a query.
    """
    return answer_metrics([group.gold_answers for group in examples.groups], [answer["answer"] for answer in answers])
