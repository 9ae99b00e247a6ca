"""How good answers are: exact match and F1 over words, as SQuAD's official script counts them.

Rajpurkar et al., 2016, arXiv:1606.05250; with questions that nothing answers 2018, arXiv:1806.03822.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import Array, Parts

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces.

    >>> normalize("The  Eiffel Tower!")
    'eiffel tower'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def overlap(expected: str, predicted: str) -> float:
    """F1 over the words of two answers; of two of which one has no words, whether both have none.

    >>> overlap("the tall tower", "tall")
    0.6666666666666666
    """
    gold, said = normalize(expected).split(), normalize(predicted).split()
    if not gold or not said:
        return float(gold == said)
    same = sum((Counter(gold) & Counter(said)).values())
    return 2 * same / (len(gold) + len(said))


def judge(expected: Sequence[str], predicted: str) -> tuple[float, float]:
    """Exact match and F1 of an answer with the nearest of those expected; none: that there is no answer."""
    golds = [text for text in expected if normalize(text)] or [""]
    exact = max(float(normalize(text) == normalize(predicted)) for text in golds)
    return exact, max(overlap(text, predicted) for text in golds)


def answer_parts(expected: Sequence[Sequence[str]], predicted: Sequence[str]) -> Parts:
    """Exact match and F1; where some questions have no answer, also apart from these, and of these.

    >>> answer_parts([["in Paris", "Paris"], []], ["Paris", "Rome"]).whole()["exact_match"]
    0.5
    """
    pairs = [judge(golds, said) for golds, said in zip(expected, predicted, strict=True)]
    scores = np.array([(*pair, 1.0) for pair in pairs], dtype=np.float64).reshape(-1, 3)
    there = np.array([bool(golds) for golds in expected], dtype=bool)[:, None]
    names = [""] if there.all() else ["", "has_answer_", "no_answer_"]

    def finish(sums: Array) -> dict[str, float]:
        parts = {name: part for name, part in zip(names, sums.reshape(-1, 3), strict=True) if part[2]}
        return {f"{n}{m}": part[i] / part[2] for n, part in parts.items() for i, m in enumerate(("exact_match", "f1"))}

    return Parts(np.hstack([scores, scores * there, scores * ~there][: len(names)]), finish)


def question_parts(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> Parts:
    """The metrics of `answer`."""
    return answer_parts(_texts(examples), [answer["answer"] for answer in answers])


def choose_threshold(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The threshold with the highest F1, halfway between two questions; none where every question has an answer."""
    expected = _texts(examples)
    if all(expected):
        return {}
    best = [answer["candidates"][0]["answer"] if answer["candidates"] else "" for answer in answers]
    margins = np.array([answer["no_answer"] for answer in answers], dtype=np.float64)
    gains = np.array([judge(golds, said)[1] - (not golds) for golds, said in zip(expected, best, strict=True)])
    order = np.argsort(margins, kind="stable")
    margins, totals = margins[order], np.concatenate([[0.0], np.cumsum(gains[order])])
    # So many are answered, those with the lowest margins; equal ones all or none.
    between = np.concatenate([[True], margins[1:] > margins[:-1], [True]])
    answered = int(np.where(between, totals, -np.inf).argmax())
    edges = np.concatenate([margins[:1] - 2, margins, margins[-1:] + 2])
    return {"threshold": float(edges[answered] + edges[answered + 1]) / 2}


def _texts(examples: Any) -> list[list[str]]:
    return [[span.text for span in spans] for spans in examples.answers]
