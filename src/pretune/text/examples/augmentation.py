"""Augment texts for a teacher to label, by dropping words and sampling n-grams (Tang et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.runtime.randomness import EpochRandom

DROP_PROBABILITY = 0.1  # of dropping a word
NGRAM_PROBABILITY = 0.25  # of reducing a text to an n-gram of it


def augment(texts: Sequence[str], copies: int, seed: int = 0) -> list[tuple[int, str]]:
    """Return up to `copies` random variants of each text, as pairs of the index of the text and the variant.

    A variant lacks some words of its text, and sometimes is reduced to a single n-gram. Duplicates are left out.

    >>> len(augment(["one two three four five six"], 2)) <= 2
    True
    """
    draws, seen = EpochRandom(seed), set(texts)
    variants: list[tuple[int, str]] = []
    for number, text in enumerate(texts):
        words = text.split()
        for copy in range(copies):
            kept = draws.uniform("left out", number, copy, np.arange(len(words))) >= DROP_PROBABILITY
            chosen = [word for word, keep in zip(words, kept, strict=True) if keep]
            if len(chosen) > 2 and float(draws.uniform("stretch", number, copy)) < NGRAM_PROBABILITY:
                size = 1 + int(draws.integers(len(chosen) - 1, "size", number, copy))
                first = int(draws.integers(len(chosen) - size + 1, "first", number, copy))
                chosen = chosen[first : first + size]
            variant = " ".join(chosen)
            if variant and variant not in seen:
                seen.add(variant)
                variants.append((number, variant))
    return variants
