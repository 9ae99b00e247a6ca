"""Define the repetition rules of MassiveText (Rae et al., 2021, arXiv:2112.11446, table A1), the corpus of Gopher."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.interval_cover import cover
from pretune.text.corpus.cleaning.rules import DocumentRule, Rule
from pretune.text.corpus.ngram_hashes import NgramHasher

MOST_DUPLICATES = 0.3  # of the lines, or paragraphs
MOST_DUPLICATE_CHARACTERS = 0.2  # in duplicate lines, or paragraphs
MOST_IN_TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}  # share of the characters in the most frequent n-gram
MOST_IN_DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
LEAST_THRESHOLD = min(MOST_IN_DUPLICATE_NGRAMS.values())


def repeats(parts: Sequence[str]) -> bool:
    """Return whether duplicates make up too large a share of the parts of a document or of their characters.

    `parts` are the lines or the paragraphs of the document. The first occurrence of a part is not a duplicate.

    >>> repeats(["Home", "News", "Home", "Home"]), repeats(["Home", "News", "A longer line with some more text.", "Home"])
    (True, False)
    """
    if len(parts) < 2:
        return False
    distinct = set(parts)
    characters = sum(map(len, parts))
    again = characters - sum(map(len, distinct))
    return len(parts) - len(distinct) > MOST_DUPLICATES * len(parts) or again > MOST_DUPLICATE_CHARACTERS * characters


def top_ngram_share(document: DocumentFeatures, size: int) -> float:
    """Return the share of a document's characters that its most frequent n-gram covers; 0 if no n-gram repeats.

    The n-grams have `size` words.
    """
    runs = NgramHasher.runs(document.word_hashes, size)
    _, first, counts = np.unique(runs, return_index=True, return_counts=True)
    if not len(counts) or counts.max() < 2:
        return 0.0
    ends = np.append(0, np.cumsum(document.word_lengths))
    characters = (ends[first + size] - ends[first])[counts == counts.max()].max()
    return min(1.0, float(counts.max() * characters / ends[-1]))


def duplicate_ngram_share(document: DocumentFeatures, size: int) -> float:
    """Return the share of a document's characters in repeated n-grams of `size` words.

    The first occurrence of an n-gram is not counted. A character counts once, even if several repeated n-grams contain
    it.
    """
    runs = NgramHasher.runs(document.word_hashes, size)
    _, first = np.unique(runs, return_index=True)
    again = np.ones(len(runs), dtype=bool)
    again[first] = False
    inside = cover(np.flatnonzero(again), size, len(document.words))
    return float(document.word_lengths[inside].sum() / max(1, document.word_lengths.sum()))


def _has_top_ngram(document: DocumentFeatures) -> bool:
    return any(top_ngram_share(document, size) > most for size, most in MOST_IN_TOP_NGRAM.items())


def _has_duplicate_ngrams(document: DocumentFeatures) -> bool:
    for size, most in MOST_IN_DUPLICATE_NGRAMS.items():
        share = duplicate_ngram_share(document, size)
        if share > most or share <= LEAST_THRESHOLD:
            return share > most
    return False


REPETITION_RULES: tuple[Rule, ...] = tuple(
    DocumentRule(f"gopher-repetition/{name}", removes, about)
    for name, removes, about in (
        (
            "duplicate-lines",
            lambda d: repeats(d.lines),
            f"documents in which more than {MOST_DUPLICATES:.0%} of the lines, or {MOST_DUPLICATE_CHARACTERS:.0%} of their "
            "characters, repeat a line",
        ),
        (
            "duplicate-paragraphs",
            lambda d: repeats(d.paragraphs),
            "documents in which as many paragraphs repeat a paragraph",
        ),
        (
            "top-ngram",
            _has_top_ngram,
            "documents in which a word 2-gram, 3-gram, or 4-gram has more than 20%, 18%, or 16% of the characters",
        ),
        (
            "duplicate-ngrams",
            _has_duplicate_ngrams,
            "documents in which word 5-grams (6-, 7-, 8-, 9-, 10-grams) that occurred before have more than 15% (14%, 13%, 12%, "
            "11%, 10%) of the characters",
        ),
    )
)
