"""Compute metrics of generated text: exact match, word F1, ROUGE, BLEU and chrF, all between 0 and 1.

ROUGE-1, -2 and -L (Lin, 2004) are mean F1 over words, bigrams and longest common subsequences. BLEU (Papineni et al.,
2002) and chrF (Popović, 2015) are corpus-level and equal to sacrebleu's (Post, 2018): BLEU with 4-grams and the 13a
tokenization, chrF with character 6-grams and β = 2.
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
CHRF_ORDER, CHRF_BETA2 = 6, 4  # of chrF: the length of the longest n-grams, and β²
ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}


def exact_match(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the share of predicted texts that equal the expected ones up to white space.

    >>> exact_match(["a b", "c"], [" a  b", "C"]).compute()
    {'exact_match': 0.5}
    """
    return mean_metrics([[a.split() == b.split()] for a, b in zip(expected, predicted, strict=True)], "exact_match")


def word_f1(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the mean word F1 without case, punctuation and English articles, as the script of SQuAD computes it.

    >>> word_f1(["the Eiffel Tower"], ["Eiffel!"]).compute()
    {'word_f1': 0.6666666666666666}
    """
    return mean_metrics([[answer_f1(a, b)] for a, b in zip(expected, predicted, strict=True)], "word_f1")


# -- ROUGE ----------------------------------------------------------------------------------------------------------


def rouge(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L over lower-case words, which are runs of letters and digits of any language.

    >>> rouge(["the cat sat"], ["the cat"]).compute()["rouge1"]
    0.8
    """
    rows = []
    for pair in zip(expected, predicted, strict=True):
        words = [WORD.findall(text.lower()) for text in pair]
        scores = []
        for n in (1, 2):
            a, b = (_ngrams(side, n) for side in words)
            scores.append(_f1((a & b).total(), a.total(), b.total()))
        rows.append([*scores, _f1(longest_common_subsequence(*words), *map(len, words))])
    return mean_metrics(rows, "rouge1", "rouge2", "rougeL")


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words.

    >>> longest_common_subsequence("a b c d".split(), "b d a".split())
    2
    """
    row = [0] * (len(b) + 1)
    for word in a:
        corner = 0  # the value above and to the left
        for place, other in enumerate(b, 1):
            corner, row[place] = row[place], corner + 1 if word == other else max(row[place], row[place - 1])
    return row[-1]


def _f1(common: int, expected: int, predicted: int) -> float:
    return 2 * common / (expected + predicted) if expected + predicted else 0.0


def _ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


# -- BLEU and chrF --------------------------------------------------------------------------------------------------


def bleu(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return corpus BLEU with exponential smoothing: the k-th n-gram length without a match counts as 1/2^k matches.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"]).compute()
    {'bleu': 1.0}
    """
    counts = np.zeros((len(expected), 3, 4))  # matches and n-grams, by n; lengths of reference and hypothesis
    for row, (a, b) in zip(counts, zip(expected, predicted, strict=True), strict=True):
        reference, hypothesis = tokenize_13a(a), tokenize_13a(b)
        row[2, :2] = len(reference), len(hypothesis)
        for n in range(4):
            ngrams = _ngrams(hypothesis, n + 1)
            row[:2, n] = (ngrams & _ngrams(reference, n + 1)).total(), ngrams.total()

    def from_sums(sums: Array) -> dict[str, float]:
        matches, ngrams, (reference, hypothesis, _, _) = sums.reshape(3, 4)
        if not matches.any() or not ngrams.all():
            return {"bleu": 0.0}
        precisions = np.where(matches > 0, matches, 0.5 ** np.cumsum(matches == 0)) / ngrams
        brevity = min(1.0, math.exp(1 - reference / hypothesis))
        return {"bleu": float(brevity * np.exp(np.log(precisions).mean()))}

    return AdditiveMetrics(counts.reshape(-1, 12), from_sums)


def tokenize_13a(text: str) -> list[str]:
    """Split a text into words with the 13a tokenization of WMT: punctuation is separate, except inside numbers.

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


def chrf(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return corpus chrF, the F-score over character n-grams (n up to 6, β = 2), without spaces.

    >>> chrf(["abcdefg"], ["abcdefg"]).compute()
    {'chrf': 1.0}
    """
    counts = np.zeros((len(expected), 3, CHRF_ORDER))  # matches, reference and hypothesis n-grams, by n
    for row, pair in zip(counts, zip(expected, predicted, strict=True), strict=True):
        texts = ["".join(text.split()) for text in pair]
        for n in range(CHRF_ORDER):
            reference, hypothesis = (_ngrams(text, n + 1) for text in texts)
            # Hypothesis n-grams do not count if the reference has no n-gram of this length.
            total = hypothesis.total() if reference else 0
            row[:, n] = (reference & hypothesis).total(), reference.total(), total

    def from_sums(sums: Array) -> dict[str, float]:
        matches, references, hypotheses = sums.reshape(3, CHRF_ORDER)
        both = (references > 0) & (hypotheses > 0)
        if not both.any() or not matches.any():
            return {"chrf": 0.0}
        precision, recall = (float((matches[both] / x[both]).mean()) for x in (hypotheses, references))
        return {"chrf": (1 + CHRF_BETA2) * precision * recall / (CHRF_BETA2 * precision + recall)}

    return AdditiveMetrics(counts.reshape(-1, 3 * CHRF_ORDER), from_sums)


# -- metrics of tasks ------------------------------------------------------------------------------------------------

# Option of the task `generate` → its metrics.
TEXT_METRICS = {
    "exact_match": (exact_match,),
    "word_f1": (exact_match, word_f1),
    "rouge": (exact_match, rouge),
    "bleu": (exact_match, bleu, chrf),
}


def text_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> AdditiveMetrics:
    """Return the metrics of generated texts that the task's option `metric` selects, such as ROUGE or BLEU."""
    predicted = [answer["answer"] for answer in answers]
    return join_metrics([metric(examples.labels, predicted) for metric in TEXT_METRICS[task.metric]])


def closed_set_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return text and classification metrics of generated answers that are restricted to the task's labels."""
    predicted = [answer["answer"] for answer in answers]
    metrics = text_metrics(answers, examples, task).compute()
    return {**metrics, **classification_metrics(examples.labels, predicted, task.labels)}
