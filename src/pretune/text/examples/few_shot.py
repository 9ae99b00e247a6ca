"""Sample a few examples of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import permutation


def sample_rows_per_class(labels: Sequence[Any], each: int, seed: int) -> list[int]:
    """Return the indices of up to `each` random rows of each class, sorted; `labels` has the class of each row.

    >>> len(sample_rows_per_class(["a", "b", "a", "b", "a"], 2, seed=0))
    4
    """
    groups: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(str(label), []).append(row)
    sampled = ((rows, permutation(len(rows), seed, f"labels {label}")[:each]) for label, rows in groups.items())
    return sorted(rows[i] for rows, chosen in sampled for i in chosen)


def sample_few_shot(examples: Any, count: int, seed: int, classes: bool) -> Any:
    """Return `count` random examples of each class if `classes`, else `count` random examples in total.

    Without labels, `classes` is ignored. If fewer than `count` examples are available, all of them are returned.
    """
    if count < 1:
        raise PretuneError(f"--shots {count}: choose at least 1 example")
    if classes and getattr(examples, "labels", None) is not None:
        return sample_per_class(examples, count, seed)
    return sample_examples(examples, min(count, int(query_groups(examples).max()) + 1), seed)


def sample_per_class(examples: Any, each: int, seed: int) -> Any:
    """Return up to `each` random examples of each class, and log the line numbers of the sampled examples."""
    labels = getattr(examples, "labels", None)
    if labels is None:
        raise PretuneError(f"{examples.file}: examples without labels cannot be sampled per class; add a label column")
    if each < 1:
        raise PretuneError(f"--shots {each}: choose at least 1 example per class")
    sampled = examples.take(sample_rows_per_class(labels, each, seed))
    counts = sorted(Counter(map(str, sampled.labels)).items())
    few = "; ".join(f"only {count} of {label!r}" for label, count in counts if count < each)
    rows = f"{len(sampled)} of {len(labels)} rows, {each} per class with seed {seed}: {list_lines(sampled)}"
    log_info(f"{examples.file}: {rows}" + (f" ({few})" if few else ""))
    return sampled


def sample_examples(examples: Any, count: int, seed: int) -> Any:
    """Return `count` random examples, regardless of their labels, and log the line numbers of these examples.

    Rows of the same group, such as the answers to a query, count as one example.
    """
    groups = query_groups(examples)
    total = int(groups.max()) + 1
    if not 1 <= count <= total:
        raise PretuneError(f"{examples.file}: cannot sample {count} of {total} examples; choose 1 to {total}")
    sampled = examples.take(np.flatnonzero(np.isin(groups, permutation(total, seed, "some")[:count])).tolist())
    log_info(f"{examples.file}: sampled {len(sampled)} of {len(examples)} rows with seed {seed}: {list_lines(sampled)}")
    return sampled


def query_groups(examples: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an integer per row, (rows,), which is equal for rows of the same `group`, such as the answers to a query.

    If the examples have no groups, the integers are 0, 1, 2, ….
    """
    return examples.queries if "group" in getattr(examples, "extra", ()) else np.arange(len(examples))  # type: ignore[no-any-return]


def list_lines(examples: Any) -> str:
    """Return the line numbers of the first 20 examples as text, for log messages."""
    more = ", …" if len(examples) > 20 else ""
    if examples.lines:
        return f"lines {', '.join(map(str, examples.lines[:20]))}{more}"
    rows = range(min(len(examples), 20))
    return ", ".join(examples.location(row).removeprefix(f"{examples.file}, ") for row in rows) + more
