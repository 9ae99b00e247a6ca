"""Split examples into training and validation sets, and detect leaks between the two."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.progress import log_info
from pretune.runtime.randomness import EpochRandom

SHARE = 0.2  # share of the examples for validation
FEWEST = 50  # examples below which none are held out


def split_examples(examples: Any, share: float = SHARE, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return the row indices of the training set and of the validation set, which has a `share` of the rows.

    Both sets have about the same distribution of labels (stratification), and duplicates are in the same set.

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


def assign_folds(examples: Any, count: int, seed: int = 0) -> Array:
    """Return the fold of each example for cross-validation, (examples,): a number from 0 to `count` - 1.

    All folds have about the same distribution of labels (stratification), and duplicates are in the same fold.

    >>> from pretune.text.examples.labeled import LabeledRows
    >>> rows = LabeledRows("x.csv", {}, list("abcd"), labels=list("xxyy"))
    >>> sorted(assign_folds(rows, 2).tolist())
    [0, 0, 1, 1]
    """
    draws, groups = EpochRandom(seed), defaultdict[str, list[int]](list)
    for row in range(len(examples)):
        groups[examples.duplicate_key(row)].append(row)
    order = sorted(
        groups.values(),
        key=lambda rows: (stratification_label(examples, rows[0]), float(draws.uniform("folds", rows[0]))),
    )
    folds = np.empty(len(examples), dtype=np.int64)
    for number, rows in enumerate(order):
        folds[rows] = number % count
    return folds


def stratification_label(examples: Any, row: int) -> str:
    """Return the class label by which an example is stratified; "" if its label is a number or missing.

    Of several labels (multi-label classification), it is the first one.
    """
    label = examples.labels[row] if getattr(examples, "labels", None) else ""
    label = next(iter(label), "") if isinstance(label, tuple) else label
    return label if isinstance(label, str) else ""


def warn_of_duplicates(train: Any, validation: Any) -> int:
    """Return the number of validation examples that are also in the training set; if there are any, log them."""
    known = {train.duplicate_key(row) for row in range(len(train))}
    leaked = [row for row in range(len(validation)) if validation.duplicate_key(row) in known]
    if leaked:
        lines = ", ".join(validation.location(row) for row in leaked[:3])
        share = f"{len(leaked)} of {len(validation)} examples of {validation.file}"
        log_info(f"{share} are also in {train.file} ({lines} …), so validation scores will be too high")
    return len(leaked)
