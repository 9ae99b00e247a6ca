"""Anisotropy and self-similarity of contextual representations (Ethayarajh, 2019, *How Contextual are …*)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.runtime.arrays import Array

MIN_OCCURRENCES = 5  # of a word whose self-similarity is measured


def mean_cosine(vectors: Array) -> float:
    """Return the anisotropy of vectors, (n, width): the mean cosine similarity over all pairs of two vectors.

    The result is about 0 if the directions of the vectors are spread evenly, 1 if all vectors point in the same
    direction, and NaN for fewer than two vectors.

    >>> mean_cosine(np.eye(3)), mean_cosine(np.ones((3, 2)))
    (0.0, 1.0)
    """
    n = len(vectors)
    if n < 2:
        return float("nan")
    units = _unit_vectors(vectors)
    total = units.sum(0)
    squares = (units * units).sum()  # n, without vectors of length 0
    return float(np.round((total @ total - squares) / (n * (n - 1)), 12))


def self_similarity(vectors: Array, words: Sequence[str], texts: Array, least: int = MIN_OCCURRENCES) -> float:
    """Return the mean cosine similarity between the vectors of the same word in different texts, averaged over words.

    The result is 1 if the vector of a word does not depend on its context, and NaN if no word occurs in enough texts.

    Parameters
    ----------
    vectors
        One vector per occurrence, (n, width).
    words, texts
        The word of each occurrence, and the index of its text; only the first occurrence in each text counts.
    least
        The minimum number of texts in which a word must occur to be counted.
    """
    first: dict[tuple[str, int], int] = {}
    for place, (word, text) in enumerate(zip(words, texts.tolist(), strict=True)):
        first.setdefault((word.casefold(), text), place)
    places: dict[str, list[int]] = {}
    for (word, _), place in first.items():
        if any(character.isalpha() for character in word):
            places.setdefault(word, []).append(place)
    found = [mean_cosine(vectors[own]) for own in places.values() if len(own) >= max(2, least)]
    return float(np.mean(found)) if found else float("nan")


def _unit_vectors(vectors: Array) -> Array:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
