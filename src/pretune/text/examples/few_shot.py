"""A few examples of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import permutation


def draw_labels(labels: Sequence[Any], each: int, seed: int) -> list[int]:
    """Rows with so many labels of each class.

    >>> len(draw_labels(["a", "b", "a", "b", "a"], 2, seed=0))
    4
    """
    groups: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(str(label), []).append(row)
    drawn = ((rows, permutation(len(rows), seed, f"labels {label}")[:each]) for label, rows in groups.items())
    return sorted(rows[place] for rows, places in drawn for place in places)


def draw_few(examples: Any, count: int, seed: int, classes: bool) -> Any:
    """So many examples of each class; where answers are no classes, so many in all, or all rows of so many queries."""
    if count < 1:
        raise PretuneError(f"--shots {count}: 1 or more examples")
    if classes and getattr(examples, "labels", None) is not None:
        return draw_shots(examples, count, seed)
    return draw_some(examples, min(count, int(groups_of(examples).max()) + 1), seed)


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
    few = [f"{label!r} has {count}" for label, count in sorted(Counter(map(str, drawn.labels)).items()) if count < each]
    say(
        f"{examples.file}: {len(drawn)} of {len(labels)} rows, {each} of each class by seed {seed}: {places(drawn)}"
        + (f" ({'; '.join(few)})" if few else "")
    )
    return drawn


def draw_some(examples: Any, count: int, seed: int) -> Any:
    """So many examples by chance, whatever their labels; says which."""
    groups = groups_of(examples)
    known = int(groups.max()) + 1
    if not 1 <= count <= known:
        raise PretuneError(f"{examples.file}: {count} examples are asked for, and there are {known}")
    drawn = examples.take(np.flatnonzero(np.isin(groups, permutation(known, seed, "some")[:count])).tolist())
    say(f"{examples.file}: {len(drawn)} of {len(examples)} rows by seed {seed}: {places(drawn)}")
    return drawn


def groups_of(examples: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(rows,) numbers, the same for rows that say something only together."""
    return examples.queries if "group" in getattr(examples, "more", ()) else np.arange(len(examples))  # type: ignore[no-any-return]


def places(examples: Any) -> str:
    """Where some examples stand, the first of them."""
    shown, more = range(min(len(examples), 20)), ", …" if len(examples) > 20 else ""
    if lines := getattr(examples, "lines", None):
        return f"lines {', '.join(str(lines[row]) for row in shown)}{more}"
    return ", ".join(examples.place(row).removeprefix(f"{examples.file}, ") for row in shown) + more
