"""Interval arithmetic: conservative for all rules, and exact for single comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune.nn.attention.interval_arithmetic import ValueInterval, lookup

TABLE = torch.tensor([[(3 * i + j * j) % 4 == 0 for j in range(30)] for i in range(30)])
EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "at most": lambda a, b: a <= b,
    "less": lambda a, b: a < b,
    "at least": lambda a, b: a >= b,
    "more": lambda a, b: a > b,
    "equal": lambda a, b: a == b,
    "other": lambda a, b: a != b,
    "near": lambda a, b: (a - b).abs() <= 3,
    "far": lambda a, b: ~((a - b).abs() <= 3),
    "sum": lambda a, b: 2 + a + b - 1 > 20,
    "difference": lambda a, b: 7 - a <= b,
    "blocks": lambda a, b: a // 4 == b // 4,
    "table": lambda a, b: lookup(TABLE, a, b),
}
SAFE: dict[str, Callable[[Any, Any], Any]] = {
    "gaps": lambda a, b: ((a - b).abs() <= 9) & ((a - b).abs() % 3 == 0),
    "same rest": lambda a, b: a % 5 == b % 5,
    "both": lambda a, b: (a < b) & (b <= a + 2),
    "either": lambda a, b: (a < b) | (b > 9) | (b <= a),
}
ranges = st.lists(st.integers(0, 29), min_size=2, max_size=2).map(sorted)


@pytest.mark.parametrize("name", [*EXACT, *SAFE])
@given(a=ranges, b=ranges)
def test_intervals_are_conservative_about_their_numbers(name: str, a: list[int], b: list[int]) -> None:
    rule = {**EXACT, **SAFE}[name]
    truth = rule(as_range(a), as_range(b))
    pairs = rule(torch.arange(a[0], a[1] + 1)[:, None], torch.arange(b[0], b[1] + 1))
    if name in EXACT:
        assert (bool(truth.some), bool(truth.all)) == (bool(pairs.any()), bool(pairs.all()))
    else:
        assert bool(pairs.any()) <= bool(truth.some) and bool(truth.all) <= bool(pairs.all())


def as_range(ends: list[int]) -> ValueInterval:
    low, high = (torch.tensor(end) for end in ends)
    return ValueInterval(low, high)
