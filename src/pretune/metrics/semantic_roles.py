"""Compute the F1 of semantic roles as the scorer of CoNLL-2005 does (Carreras and Màrquez, 2005)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pretune.metrics.additive import AdditiveMetrics
from pretune.runtime.arrays import Array
from pretune.text.examples.tag_schemes import parse_tags

PREDICATE = "V"
CONTINUED = "C-"  # before the role of a further part of an argument

Argument = tuple[str, tuple[tuple[int, int], ...]]  # its role, and the first and the last word of each part


def role_metrics(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> AdditiveMetrics:
    """Return precision, recall and F1 over the arguments of predicates, given one tag per word.

    An argument is correct if its role and all of its words are correct. The predicate itself is not counted.

    >>> role_metrics([["B-A0", "B-V", "B-A1", "I-A1"]], [["B-A0", "B-V", "B-A1", "O"]]).compute()
    {'role_f1': 0.5, 'precision': 0.5, 'recall': 0.5}
    """
    values = []
    for gold, guess in zip(map(arguments, expected), map(arguments, predicted), strict=True):
        values.append([len(gold & guess), len(gold), len(guess)])

    def from_sums(sums: Array) -> dict[str, float]:
        both, gold, guessed = map(float, sums)
        return {
            "role_f1": 2 * both / max(1, gold + guessed),
            "precision": both / max(1, guessed),
            "recall": both / max(1, gold),
        }

    return AdditiveMetrics(np.array(values, dtype=np.float64).reshape(-1, 3), from_sums)


def arguments(tags: Sequence[str]) -> set[Argument]:
    """Return the arguments that tags mark; a span such as C-A1 is a further part of the last argument A1 before it.

    >>> sorted(arguments(["B-A1", "B-V", "B-C-A1", "B-AM-TMP"]))
    [('A1', ((0, 0), (2, 2))), ('AM-TMP', ((3, 3),))]
    """
    found: list[tuple[str, list[tuple[int, int]]]] = []
    for span in parse_tags(tags):
        role = span.kind.removeprefix(CONTINUED)
        begun = [parts for name, parts in found if name == role] if role != span.kind else []
        if begun:
            begun[-1].append((span.first, span.last))
        else:
            found.append((role, [(span.first, span.last)]))
    return {(role, tuple(parts)) for role, parts in found if role != PREDICATE}
