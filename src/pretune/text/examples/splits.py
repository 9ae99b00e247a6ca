"""Split examples into training and validation sets, and detect leaks between the two."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom

SHARE = 0.2  # share of the examples for validation
FEWEST = 50  # examples below which none are held out


def split_examples(examples: Any, share: float = SHARE, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return row indices for training and validation (a `share` of the rows), stratified; duplicates stay together.

    >>> from pretune.text.examples.labeled import LabeledRows
    >>> rows = LabeledRows("x.csv", {}, [f"text {i % 8}" for i in range(10)], labels=list("ab" * 5))
    >>> train, validation = split_examples(rows, 0.4)
    >>> {rows.texts[i] for i in train} & {rows.texts[i] for i in validation}
    set()
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for row in range(len(examples)):
        groups[examples.duplicate_key(row)].append(row)
    by_label: dict[str, list[list[int]]] = defaultdict(list)
    for members in groups.values():
        by_label[stratification_label(examples, members[0])].append(members)
    held_out: list[int] = []
    draws = EpochRandom(seed)
    for candidates in by_label.values():
        order = sorted(range(len(candidates)), key=lambda i: float(draws.uniform("split", candidates[i][0])))
        wanted = share * sum(map(len, candidates))
        taken = 0
        for number in order[:-1]:  # at least one group per label stays in the training set
            if taken >= wanted:
                break
            held_out += candidates[number]
            taken += len(candidates[number])
    chosen = set(held_out)
    return [row for row in range(len(examples)) if row not in chosen], sorted(held_out)


def stratification_label(examples: Any, row: int) -> str:
    """Return the class label of an example, the first if it has several; "" for a numeric or missing label."""
    label = examples.labels[row] if getattr(examples, "labels", None) else ""
    label = next(iter(label), "") if isinstance(label, tuple) else label
    return label if isinstance(label, str) else ""


def warn_of_duplicates(train: Any, validation: Any) -> int:
    """Return the number of validation examples that are also in the training set, and log them if there are any."""
    known = {train.duplicate_key(row) for row in range(len(train))}
    leaked = [row for row in range(len(validation)) if validation.duplicate_key(row) in known]
    if leaked:
        lines = ", ".join(validation.location(row) for row in leaked[:3])
        share = f"{len(leaked)} of {len(validation)} examples of {validation.file}"
        log_info(f"{share} are also in {train.file} ({lines} …), so validation scores will be too high")
    return len(leaked)
