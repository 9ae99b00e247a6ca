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
MAX_ORDER = 4  # of BLEU: the length of the longest n-grams
CHRF_ORDER, CHRF_BETA2 = 6, 4  # of chrF: the length of the longest n-grams, and β²
ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}


def exact_match(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the share of predicted texts that equal the expected texts, apart from the amount of whitespace.

    >>> exact_match(["a b", "c"], [" a  b", "C"]).compute()
    {'exact_match': 0.5}
    """
    return mean_metrics([[a.split() == b.split()] for a, b in zip(expected, predicted, strict=True)], "exact_match")


def word_f1(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return the mean word F1 of predicted texts, computed as SQuAD's script does.

    Case, punctuation and English articles are ignored.

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
            a, b = (count_ngrams(side, n) for side in words)
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


def count_ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    """Return the number of occurrences of each n-gram of `size` words.

    >>> count_ngrams("a b a b".split(), 2)[("a", "b")]
    2
    """
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


# -- BLEU and chrF --------------------------------------------------------------------------------------------------


def bleu(expected: Sequence[str], predicted: Sequence[str]) -> AdditiveMetrics:
    """Return corpus BLEU with exponential smoothing.

    If no n-gram of some lengths matches, the number of matches of the k-th such length is set to 1/2^k.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"]).compute()
    {'bleu': 1.0}
    """
    counts = np.zeros((len(expected), 3, MAX_ORDER))  # matches and n-grams, by n; lengths of reference and hypothesis
    for row, (a, b) in zip(counts, zip(expected, predicted, strict=True), strict=True):
        reference, hypothesis = tokenize_13a(a), tokenize_13a(b)
        row[2, :2] = len(reference), len(hypothesis)
        for n in range(MAX_ORDER):
            ngrams = count_ngrams(hypothesis, n + 1)
            row[:2, n] = (ngrams & count_ngrams(reference, n + 1)).total(), ngrams.total()

    return AdditiveMetrics(
        counts.reshape(-1, 3 * MAX_ORDER), lambda sums: {"bleu": bleu_score(sums.reshape(3, MAX_ORDER))}
    )


def bleu_score(sums: Array) -> float:
    """Return BLEU, given sums over all texts, (3, 4).

    The rows are the number of matching n-grams for n from 1 to 4, the number of n-grams in the hypotheses for n from 1
    to 4, and the total lengths of the references and the hypotheses, followed by two unused values.
    """
    matches, ngrams, (reference, hypothesis, *_) = sums
    if not matches.any() or not ngrams.all():
        return 0.0
    precisions = np.where(matches > 0, matches, 0.5 ** np.cumsum(matches == 0)) / ngrams
    brevity = min(1.0, math.exp(1 - reference / hypothesis))
    return float(brevity * np.exp(np.log(precisions).mean()))


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
    """Return corpus chrF: the F-score over character n-grams (n up to 6, β = 2), ignoring whitespace.

    >>> chrf(["abcdefg"], ["abcdefg"]).compute()
    {'chrf': 1.0}
    """
    counts = np.zeros((len(expected), 3, CHRF_ORDER))  # matches, reference and hypothesis n-grams, by n
    for row, pair in zip(counts, zip(expected, predicted, strict=True), strict=True):
        texts = ["".join(text.split()) for text in pair]
        for n in range(CHRF_ORDER):
            reference, hypothesis = (count_ngrams(text, n + 1) for text in texts)
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
    """Return the metrics of generated texts (`answers`) that the option `metric` of the task selects, such as ROUGE."""
    predicted = [answer["answer"] for answer in answers]
    return join_metrics([metric(examples.labels, predicted) for metric in TEXT_METRICS[task.metric]])


def closed_set_metrics(answers: Sequence[dict[str, Any]], examples: Any, task: Any) -> dict[str, float]:
    """Return text metrics and classification metrics of generated answers that can only be labels of the task."""
    predicted = [answer["answer"] for answer in answers]
    metrics = text_metrics(answers, examples, task).compute()
    return {**metrics, **classification_metrics(examples.labels, predicted, task.labels)}
