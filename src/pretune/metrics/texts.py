"""How close written texts are to those that were wanted: exact match, ROUGE, BLEU and chrF, all between 0 and 1.

ROUGE-1, -2 and -L (Lin, 2004) are mean F1 of words, pairs of words and longest common subsequences. BLEU (Papineni et al., 2002)
and chrF (Popović, 2015) are of all texts together, as sacrebleu has them (Post, 2018): BLEU up to four words in the tokenization
13a, chrF up to six characters, recall twice as heavy as precision.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.classification import classification_metrics

WORD = re.compile(r"[^\W_]+")
ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
Grams = Counter[tuple[str, ...]]


def exact_match(expected: Sequence[str], written: Sequence[str]) -> float:
    """The share of texts that are what was wanted; only spaces may differ.

    >>> exact_match(["a b", "c"], [" a  b", "C"])
    0.5
    """
    return float(np.mean([a.split() == b.split() for a, b in zip(expected, written, strict=True)]))


# -- ROUGE ----------------------------------------------------------------------------------------------------------


def rouge(expected: Sequence[str], written: Sequence[str]) -> dict[str, float]:
    """Mean F1 over texts; words are letters and digits of any language, in lower case.

    >>> rouge(["the cat sat"], ["the cat"])["rouge1"]
    0.8
    """
    rows = []
    for a, b in zip(expected, written, strict=True):
        wanted, found = (WORD.findall(text.lower()) for text in (a, b))
        pairs = [_overlap(_grams(wanted, n), _grams(found, n)) for n in (1, 2)]
        rows.append([*pairs, _f1(common_length(wanted, found), len(wanted), len(found))])
    return dict(zip(("rouge1", "rouge2", "rougeL"), np.mean(rows, axis=0).tolist(), strict=True))


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words the longest common subsequence has.

    >>> common_length("a b c d".split(), "b d a".split())
    2
    """
    row = [0] * (len(b) + 1)
    for word in a:
        corner = 0  # what stood above and left
        for place, other in enumerate(b, 1):
            corner, row[place] = row[place], corner + 1 if word == other else max(row[place], row[place - 1])
    return row[-1]


def _overlap(wanted: Grams, found: Grams) -> float:
    return _f1((wanted & found).total(), wanted.total(), found.total())


def _f1(common: int, wanted: int, found: int) -> float:
    return 2 * common / (wanted + found) if wanted + found else 0.0


def _grams(words: Sequence[str], size: int) -> Grams:
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


# -- BLEU and chrF --------------------------------------------------------------------------------------------------


def bleu(expected: Sequence[str], written: Sequence[str]) -> float:
    """BLEU of all texts together. Of a size of which nothing is right, half as much is counted as of the one before.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
    1.0
    """
    right, there = np.zeros(4), np.zeros(4)
    lengths = np.zeros(2)
    for a, b in zip(expected, written, strict=True):
        wanted, found = tokenize_13a(a), tokenize_13a(b)
        lengths += len(wanted), len(found)
        for n in range(4):
            grams = _grams(found, n + 1)
            right[n] += (grams & _grams(wanted, n + 1)).total()
            there[n] += grams.total()
    if not right.any() or not there.all():
        return 0.0
    missing = np.cumsum(right == 0)
    shares = np.where(right > 0, right, 0.5**missing) / there
    brevity = min(1.0, math.exp(1 - lengths[0] / lengths[1]))
    return float(brevity * np.exp(np.log(shares).mean()))


def tokenize_13a(text: str) -> list[str]:
    """Words as the evaluations of machine translation cut them: punctuation apart, but not inside numbers.

    >>> tokenize_13a("It cost 1,000.5 (or more).")
    ['It', 'cost', '1,000.5', '(', 'or', 'more', ')', '.']
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, sign in ENTITIES.items():
        text = text.replace(entity, sign)
    text = re.sub(r"([{-~\[-` -&(-+:-@/])", r" \1 ", f" {text} ")
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)
    return re.sub(r"([0-9])(-)", r"\1 \2 ", text).split()


def chrf(expected: Sequence[str], written: Sequence[str], order: int = 6, beta: float = 2.0) -> float:
    """chrF of all texts together, spaces left out.

    >>> chrf(["abcdefg"], ["abcdefg"])
    1.0
    """
    right, wanted, found = np.zeros((3, order))
    for a, b in zip(expected, written, strict=True):
        letters = ["".join(text.split()) for text in (a, b)]
        for n in range(order):
            ours, theirs = (_grams(text, n + 1) for text in letters)
            right[n] += (ours & theirs).total()
            wanted[n] += ours.total()
            found[n] += theirs.total() if ours else 0  # nothing so long was wanted
    there = (wanted > 0) & (found > 0)
    if not there.any():
        return 0.0
    precision, recall = (float((right[there] / x[there]).mean()) for x in (found, wanted))
    heavy = beta**2
    return (1 + heavy) * precision * recall / (heavy * precision + recall) if precision + recall else 0.0


def score_texts(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """The metrics of `generate`: those of a classifier where answers are a closed set."""
    expected, written = examples.labels, [answer["answer"] for answer in answers]
    found = {"exact_match": exact_match(expected, written)}
    if task.closed:
        found |= classification_metrics(expected, written, task.labels)
    if task.judged == "rouge":
        found |= rouge(expected, written)
    if task.judged == "bleu":
        found |= {"bleu": bleu(expected, written), "chrf": chrf(expected, written)}
    return found
