"""What a model understands, phenomenon by phenomenon; and whether it answers alike where only a gender differs.

Sources: Wang et al., 2019, arXiv:1804.07461 (AX) and arXiv:1905.00537 (AX-b, AX-g); Shavrina et al., 2020, arXiv:2010.15925
(LiDiRus); Rudinger et al., 2018, arXiv:1804.09301 (pairs that differ in gender); Nangia et al., 2020, arXiv:2010.00133 (pairs of
sentences, one a stereotype).
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

Categories = Mapping[str, Sequence[str]]  # category → phenomena, of a row


def matthews(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews correlation; of three classes Gorodkin's R₃, which is the same for two. 0 where one side is all the same.

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
    """For each category, and each phenomenon in it: how many rows, correlation and accuracy.

    >>> by_phenomenon([{"Logic": ["Negation"]}, {}], ["a", "b"], ["a", "a"])[1]["phenomenon"]
    'Negation'
    """
    found: dict[tuple[str, str], list[int]] = {}
    for row, told in enumerate(categories):
        for category, phenomena in told.items():
            for phenomenon in ("all", *phenomena):
                found.setdefault((category, phenomenon), []).append(row)
    table = []
    for (category, phenomenon), rows in sorted(
        found.items(), key=lambda item: (item[0][0], item[0][1] != "all", item[0][1])
    ):
        gold, said = [expected[row] for row in rows], [predicted[row] for row in rows]
        right = float(np.mean([a == b for a, b in zip(gold, said, strict=True)]))
        table.append(
            {
                "category": category,
                "phenomenon": phenomenon,
                "rows": len(rows),
                "matthews": matthews(gold, said),
                "accuracy": right,
            }
        )
    return table


def parity(pairs: Sequence[Hashable], predicted: Sequence[str]) -> float:
    """The share of pairs, rows of one name, that have the same answer.

    >>> parity([0, 0, 1, 1], ["yes", "yes", "yes", "no"])
    0.5
    """
    answers: dict[Hashable, set[str]] = {}
    for pair, answer in zip(pairs, predicted, strict=True):
        answers.setdefault(pair, set()).add(answer)
    return float(np.mean([len(found) == 1 for found in answers.values()]))


def preferred(first: Sequence[float], second: Sequence[float]) -> float:
    """The share of pairs of which the first has the higher score; a draw is a half.

    Of minimal pairs, the first being the right one, it should be 1; of a stereotype and its opposite 0.5.

    >>> preferred([-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0])
    0.5
    """
    a, b = np.asarray(first), np.asarray(second)
    return float(((a > b) + 0.5 * (a == b)).mean())
