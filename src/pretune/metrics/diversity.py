"""Compute how repetitive and how diverse generated texts are: distinct-n, repeated 4-grams, and self-BLEU.

Distinct-n (Li et al., 2016, arXiv:1510.03055) is the share of n-grams, of all texts together, that are distinct. The
repetition rate (Welleck et al., 2020, arXiv:1908.04319: seq-rep-4) is the share of the 4-grams of a text that occurred
in it before. Self-BLEU (Zhu et al., 2018, arXiv:1802.01886) is the mean BLEU of a text with the others as references.
Words are those of BLEU (13a tokenization, with case).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pretune.metrics.generated_text import MAX_ORDER, bleu_score, count_ngrams, tokenize_13a

REPEATED = 4  # length of the n-grams that the repetition rate counts
DISTINCT = (1, 2, 3)  # lengths of the n-grams of distinct-n


def diversity_metrics(texts: Sequence[str]) -> dict[str, float]:
    """Return distinct-1 to distinct-3, the mean repetition rate, and self-BLEU of generated texts, between 0 and 1.

    The repetition rate and self-BLEU are means over the texts with at least four words. Metrics that cannot be computed
    are left out: self-BLEU if there is a single text, and all metrics if the texts contain no words.

    >>> diversity_metrics(["so so so so so", "a new day and a night"])["distinct_1"]
    0.5454545454545454
    """
    tokens = [tokenize_13a(text) for text in texts]
    found = {}
    for size in DISTINCT:
        counts: Counter[tuple[str, ...]] = Counter()
        for words in tokens:
            counts.update(count_ngrams(words, size))
        if counts:
            found[f"distinct_{size}"] = len(counts) / counts.total()
    rates = [rate for words in tokens if (rate := _repetition_rate(words)) is not None]
    if rates:
        found[f"repetition_{REPEATED}"] = float(np.mean(rates))
    scores = self_bleu(texts)
    if scores:
        found["self_bleu"] = float(np.mean(scores))
    return found


def repetition_rate(text: str) -> float | None:
    """Return the share of the 4-grams of a text that have already occurred earlier in the text.

    The result is None for a text of fewer than four words.

    >>> repetition_rate("on and on and on and on")
    0.5
    """
    return _repetition_rate(tokenize_13a(text))


def _repetition_rate(words: Sequence[str]) -> float | None:
    counts = count_ngrams(words, REPEATED)
    return 1 - len(counts) / counts.total() if counts else None


def self_bleu(texts: Sequence[str]) -> list[float]:
    """Return the BLEU of each text with all the other texts as its references.

    Texts of fewer than four words get no value, but are references of the others.

    >>> self_bleu(["a b c d", "a b c d", "e f g h"])[0]
    1.0
    """
    tokens = [tokenize_13a(text) for text in texts]
    if len(tokens) < 2:
        return []
    lengths = sorted(map(len, tokens))
    counts = [[count_ngrams(words, size) for words in tokens] for size in range(1, MAX_ORDER + 1)]
    most = [_two_largest(found) for found in counts]
    scores = []
    for number, words in enumerate(tokens):
        if len(words) < MAX_ORDER:
            continue
        sums = np.zeros((3, MAX_ORDER))  # matches and n-grams, by n; lengths of reference and hypothesis
        sums[2, :2] = _closest_other(lengths, len(words)), len(words)
        for row, (found, largest) in enumerate(zip(counts, most, strict=True)):
            own = found[number]
            # A match counts as often as in the reference that has the n-gram most often, the text itself excluded.
            matches = (min(n, largest[ngram][1 if largest[ngram][2] == number else 0]) for ngram, n in own.items())
            sums[:2, row] = sum(matches), own.total()
        scores.append(bleu_score(sums))
    return scores


def _two_largest(found: Sequence[Counter[tuple[str, ...]]]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Return (largest count, second largest count, index of the text with the largest count) for each n-gram.

    `found` has the counts of the n-grams of each text.
    """
    largest: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for number, counts in enumerate(found):
        for ngram, n in counts.items():
            first, second, owner = largest.get(ngram, (0, 0, -1))
            largest[ngram] = (n, first, number) if n > first else (first, max(n, second), owner)
    return largest


def _closest_other(lengths: Sequence[int], own: int) -> int:
    """Return the length in `lengths` that is nearest to `own`, apart from one occurrence of `own` itself.

    `lengths` are sorted and contain `own`. Of two equally near lengths, the shorter one is returned.
    """
    at = bisect_left(lengths, own)
    others = [lengths[i] for i in (at - 1, at + 1) if 0 <= i < len(lengths)]
    return min(others, key=lambda length: (abs(length - own), length))
