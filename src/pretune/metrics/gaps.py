"""How well gaps are filled: the answers that are right, and the words they share with a right one, as ReCoRD counts them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def plain(text: str) -> str:
    """Lower case, without punctuation and articles.

    >>> plain("The  U.S. Army")
    'us army'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def shared_words(answer: str, gold: str) -> float:
    """F1 of the words of two answers.

    >>> shared_words("the red cat", "a red fox")
    0.5
    """
    found, wanted = plain(answer).split(), plain(gold).split()
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def score_gaps(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `entity`: the best over the right answers of each query."""
    pairs = [(answer["answer"], group.golds) for answer, group in zip(answers, examples.groups, strict=True)]
    exact = [max(plain(answer) == plain(gold) for gold in golds) for answer, golds in pairs]
    shared = [max(shared_words(answer, gold) for gold in golds) for answer, golds in pairs]
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(shared))}
