"""Compute diagnostic metrics: scores by linguistic phenomenon, gender parity, and preference between minimal pairs.

Sources: Wang et al., 2019, arXiv:1804.07461 (AX) and arXiv:1905.00537 (AX-b, AX-g); Shavrina et al., 2020,
arXiv:2010.15925 (LiDiRus); Rudinger et al., 2018, arXiv:1804.09301 (pairs that differ in gender); Nangia et al., 2020,
arXiv:2010.00133 (pairs of sentences, one of which states a stereotype).
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

Categories = Mapping[str, Sequence[str]]  # category → phenomena, of a row


def matthews(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the Matthews correlation of expected and predicted labels; 0 if all labels of either sequence are equal.

    >>> matthews(["a", "b", "b", "a"], ["a", "b", "b", "b"])
    0.5773502691896258
    """
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(matthews_corrcoef(expected, predicted))


def by_phenomenon(
    categories: Sequence[Categories], expected: Sequence[str], predicted: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a table with the accuracy and the Matthews correlation of each linguistic phenomenon.

    `categories` has a dictionary per example: its phenomena by category. The table also has a row "all" for each
    category.

    >>> by_phenomenon([{"Logic": ["Negation"]}, {}], ["a", "b"], ["a", "a"])[1]["phenomenon"]
    'Negation'
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for row, annotated in enumerate(categories):
        for category, phenomena in annotated.items():
            for phenomenon in ("all", *phenomena):
                groups.setdefault((category, phenomenon), []).append(row)
    table = []
    for category, phenomenon in sorted(groups, key=lambda group: (group[0], group[1] != "all", group[1])):
        rows = groups[category, phenomenon]
        labels, guesses = [expected[row] for row in rows], [predicted[row] for row in rows]
        correct = float(np.mean([a == b for a, b in zip(labels, guesses, strict=True)]))
        scores = {"matthews": matthews(labels, guesses), "accuracy": correct}
        table.append({"category": category, "phenomenon": phenomenon, "rows": len(rows), **scores})
    return table


def gender_parity(pairs: Sequence[Hashable], predicted: Sequence[str]) -> float:
    """Return the share of pairs of examples whose two predictions are equal.

    `pairs` has the identifier of the pair to which each prediction belongs.

    >>> gender_parity([0, 0, 1, 1], ["yes", "yes", "yes", "no"])
    0.5
    """
    answers: dict[Hashable, set[str]] = {}
    for pair, answer in zip(pairs, predicted, strict=True):
        answers.setdefault(pair, set()).add(answer)
    return float(np.mean([len(labels) == 1 for labels in answers.values()]))


def preference_rate(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the share of pairs in which the score in `first` is higher than the one in `second`; ties count half.

    For minimal pairs whose first sentence is the correct one, the best value is 1; for pairs of a stereotype and its
    opposite, it is 0.5.

    >>> preference_rate([-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0])
    0.5
    """
    a, b = np.asarray(first), np.asarray(second)
    return float(((a > b) + 0.5 * (a == b)).mean())
