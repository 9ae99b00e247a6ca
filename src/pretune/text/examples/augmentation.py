"""Augment texts for a teacher to label, by dropping words and sampling n-grams (Tang et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.runtime.randomness import EpochRandom

LEFT_OUT = 0.1  # probability of dropping a word
STRETCH = 0.25  # probability of reducing a text to an n-gram of it


def augment(texts: Sequence[str], copies: int, seed: int = 0) -> list[tuple[int, str]]:
    """Return up to `copies` variants of each text, each with the index of its text.
    Variants that are empty or occur already are left out.

    >>> len(augment(["one two three four five six"], 2)) <= 2
    True
    """
    draws, seen = EpochRandom(seed), set(texts)
    variants: list[tuple[int, str]] = []
    for number, text in enumerate(texts):
        words = text.split()
        for copy in range(copies):
            kept = draws.uniform("left out", number, copy, np.arange(len(words))) >= LEFT_OUT
            chosen = [word for word, keep in zip(words, kept, strict=True) if keep]
            if len(chosen) > 2 and float(draws.uniform("stretch", number, copy)) < STRETCH:
                size = 1 + int(draws.integers(len(chosen) - 1, "size", number, copy))
                first = int(draws.integers(len(chosen) - size + 1, "first", number, copy))
                chosen = chosen[first : first + size]
            variant = " ".join(chosen)
            if variant and variant not in seen:
                seen.add(variant)
                variants.append((number, variant))
    return variants
