"""More texts out of few, for a teacher to label: words left out, and stretches of words (Tang et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.runtime.randomness import Draws

LEFT_OUT = 0.1  # chance of a word to be left out
STRETCH = 0.25  # chance of a text to be cut to a stretch of its words


def augment(texts: Sequence[str], copies: int, seed: int = 0) -> list[tuple[int, str]]:
    """So many variants of each text, in order, and whose each is; none is empty, or one that is there already.

    >>> len(augment(["one two three four five six"], 2)) <= 2
    True
    """
    draws, known = Draws(seed), set(texts)
    made: list[tuple[int, str]] = []
    for number, text in enumerate(texts):
        words = text.split()
        for copy in range(copies):
            kept = draws.uniform("left out", number, copy, np.arange(len(words))) >= LEFT_OUT
            chosen = [word for word, stays in zip(words, kept, strict=True) if stays]
            if len(chosen) > 2 and float(draws.uniform("stretch", number, copy)) < STRETCH:
                size = 1 + int(draws.integers(len(chosen) - 1, "size", number, copy))
                first = int(draws.integers(len(chosen) - size + 1, "first", number, copy))
                chosen = chosen[first : first + size]
            variant = " ".join(chosen)
            if variant and variant not in known:
                known.add(variant)
                made.append((number, variant))
    return made
