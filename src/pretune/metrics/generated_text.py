"""Metrics of generated text: exact match, word F1, ROUGE, BLEU and chrF, all between 0 and 1.

ROUGE-1, -2 and -L (Lin, 2004) are mean F1 over words, bigrams and longest common subsequences. BLEU (Papineni et al., 2002)
and chrF (Popović, 2015) are corpus-level and equal to sacrebleu's (Post, 2018): BLEU with 4-grams and the 13a tokenization,
chrF with character 6-grams and β = 2.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.metrics.additive import AdditiveMetrics, join_metrics, mean_metrics
from pretune.metrics.classification import classification_metrics
from pretune.metrics.question_answering import answer_f1
from pretune.runtime.arrays import Array

WORD = re.compile(r"[^\W_]+")
LETTERS, HEAVY = 6, 4  # of chrF: the longest n-gram, and β²
ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
Grams = Counter[tuple[str, ...]]


def exact_match(expected: Sequence[str], written: Sequence[str]) -> float:
    """Return the share of texts that equal the expected ones up to white space.

    >>> exact_match(["a b", "c"], [" a  b", "C"])
    0.5
    """
    return _exact(expected, written).whole()["exact_match"]


def _exact(expected: Sequence[str], written: Sequence[str]) -> AdditiveMetrics:
    return _means([[a.split() == b.split()] for a, b in zip(expected, written, strict=True)], "exact_match")


def word_f1(expected: Sequence[str], written: Sequence[str]) -> float:
    """Return the mean word F1 without case, punctuation and English articles, as SQuAD computes it (Rajpurkar et al., 2016).

    >>> word_f1(["the Eiffel Tower"], ["Eiffel!"])
    0.6666666666666666
    """
    return _words(expected, written).whole()["word_f1"]


def _words(expected: Sequence[str], written: Sequence[str]) -> AdditiveMetrics:
    return _means([[answer_f1(a, b)] for a, b in zip(expected, written, strict=True)], "word_f1")


def _means(rows: Sequence[Sequence[float]], *names: str) -> AdditiveMetrics:
    return mean_metrics(np.array(rows, dtype=np.float64).reshape(len(rows), len(names)), *names)


# -- ROUGE ----------------------------------------------------------------------------------------------------------


def rouge(expected: Sequence[str], written: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L; words are runs of letters and digits of any language, in lower case.

    >>> rouge(["the cat sat"], ["the cat"])["rouge1"]
    0.8
    """
    return _rouge(expected, written).whole()


def _rouge(expected: Sequence[str], written: Sequence[str]) -> AdditiveMetrics:
    rows = []
    for a, b in zip(expected, written, strict=True):
        wanted, found = (WORD.findall(text.lower()) for text in (a, b))
        pairs = [_overlap(_grams(wanted, n), _grams(found, n)) for n in (1, 2)]
        rows.append([*pairs, _f1(longest_common_subsequence(wanted, found), len(wanted), len(found))])
    return _means(rows, "rouge1", "rouge2", "rougeL")


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    >>> longest_common_subsequence("a b c d".split(), "b d a".split())
    2
    """
    row = [0] * (len(b) + 1)
    for word in a:
        corner = 0  # the value above and to the left
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
    """Return corpus BLEU with exponential smoothing: each n without a match counts half as much as the one before.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
    1.0
    """
    return _bleu(expected, written).whole()["bleu"]


def _bleu(expected: Sequence[str], written: Sequence[str]) -> AdditiveMetrics:
    counts = np.zeros((len(expected), 3, 4))  # matches and n-grams, by n; lengths of reference and hypothesis
    for row, (a, b) in zip(counts, zip(expected, written, strict=True), strict=True):
        wanted, found = tokenize_13a(a), tokenize_13a(b)
        row[2, :2] = len(wanted), len(found)
        for n in range(4):
            grams = _grams(found, n + 1)
            row[:2, n] = (grams & _grams(wanted, n + 1)).total(), grams.total()

    def finish(sums: Array) -> dict[str, float]:
        right, there, (wanted, found, _, _) = sums.reshape(3, 4)
        if not right.any() or not there.all():
            return {"bleu": 0.0}
        missing = np.cumsum(right == 0)
        shares = np.where(right > 0, right, 0.5**missing) / there
        brevity = min(1.0, math.exp(1 - wanted / found))
        return {"bleu": float(brevity * np.exp(np.log(shares).mean()))}

    return AdditiveMetrics(counts.reshape(-1, 12), finish)


def tokenize_13a(text: str) -> list[str]:
    """Split a text into words with the 13a tokenization of WMT: punctuation apart, except inside numbers.

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


def chrf(expected: Sequence[str], written: Sequence[str]) -> float:
    """Return corpus chrF without spaces.

    >>> chrf(["abcdefg"], ["abcdefg"])
    1.0
    """
    return _chrf(expected, written).whole()["chrf"]


def _chrf(expected: Sequence[str], written: Sequence[str]) -> AdditiveMetrics:
    counts = np.zeros((len(expected), 3, LETTERS))  # matches, reference and hypothesis n-grams, by n
    for row, (a, b) in zip(counts, zip(expected, written, strict=True), strict=True):
        letters = ["".join(text.split()) for text in (a, b)]
        for n in range(LETTERS):
            ours, theirs = (_grams(text, n + 1) for text in letters)
            # Hypothesis n-grams do not count if the reference has no n-gram of this length.
            row[:, n] = (ours & theirs).total(), ours.total(), theirs.total() if ours else 0

    def finish(sums: Array) -> dict[str, float]:
        right, wanted, found = sums.reshape(3, LETTERS)
        there = (wanted > 0) & (found > 0)
        if not there.any() or not right.any():
            return {"chrf": 0.0}
        precision, recall = (float((right[there] / x[there]).mean()) for x in (found, wanted))
        return {"chrf": (1 + HEAVY) * precision * recall / (HEAVY * precision + recall)}

    return AdditiveMetrics(counts.reshape(-1, 3 * LETTERS), finish)


# -- metrics of tasks ------------------------------------------------------------------------------------------------

MEASURES = {
    "exact_match": (_exact,),
    "word_f1": (_exact, _words),
    "rouge": (_exact, _rouge),
    "bleu": (_exact, _bleu, _chrf),
}


def text_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the metrics of the task `generate` for free text."""
    expected, written = examples.labels, [answer["answer"] for answer in answers]
    return join_metrics([measure(expected, written) for measure in MEASURES[task.metric]])


def closed_set_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return the metrics of the task `generate` for a closed set of answers, those of a classifier included."""
    written = [answer["answer"] for answer in answers]
    whole = text_metrics(answers, examples, task).whole()
    return {**whole, **classification_metrics(examples.labels, written, task.labels)}
