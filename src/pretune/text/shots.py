"""A few examples of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pretune.errors import PretuneError
from pretune.progress import say
from pretune.randomness import permutation


def draw_labels(labels: Sequence[Any], each: int, seed: int) -> list[int]:
    """Rows with so many labels of each class.

    >>> len(draw_labels(["a", "b", "a", "b", "a"], 2, seed=0))
    4
    """
    chosen: list[int] = []
    for label in sorted(set(labels)):
        rows = [row for row, found in enumerate(labels) if found == label]
        chosen += [rows[place] for place in permutation(len(rows), seed, f"labels {label}")[:each]]
    return sorted(chosen)


def draw_shots(examples: Any, each: int, seed: int) -> Any:
    """So many examples of each class, by chance; says which."""
    labels = getattr(examples, "labels", None)
    if labels is None:
        raise PretuneError(
            f"{examples.file}: a few examples of each class are drawn by their labels, and these have none"
        )
    if each < 1:
        raise PretuneError(f"--shots {each}: 1 or more examples of each class")
    drawn = examples.take(draw_labels(labels, each, seed))
    lines = ", ".join(map(str, drawn.lines[:20])) + (", …" if len(drawn.lines) > 20 else "")
    few = [f"{label!r} has {count}" for label, count in sorted(Counter(drawn.labels).items()) if count < each]
    say(
        f"{examples.file}: {len(drawn)} of {len(labels)} rows, {each} of each class by seed {seed}: lines {lines}"
        + (f" ({'; '.join(few)})" if few else "")
    )
    return drawn


def draw_some(examples: Any, count: int, seed: int) -> Any:
    """So many examples by chance, whatever their labels; says which."""
    if not 1 <= count <= len(examples):
        raise PretuneError(f"{examples.file}: {count} examples are asked for, and there are {len(examples)}")
    drawn = examples.take(sorted(permutation(len(examples), seed, "some")[:count].tolist()))
    say(f"{examples.file}: {count} of {len(examples)} rows by seed {seed}: lines {', '.join(map(str, drawn.lines))}")
    return drawn
