"""Paired differences: certain where they are, and no more often by chance than they say."""

from __future__ import annotations

import numpy as np
import pytest

from pretune.evaluation import paired
from pretune.evaluation.official import METRICS
from pretune.evaluation.paired import compare


def answers(right: list[bool]) -> list[dict[str, str]]:
    return [{"label": "a" if good else "b"} for good in right]


ROWS = [{"label": "a"}] * 60


def test_a_clear_difference_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "ROUNDS", 200)
    bad, good = answers([i % 2 == 0 for i in range(60)]), answers([i % 6 != 0 for i in range(60)])
    found = compare(METRICS["accuracy"], ROWS, [bad], [good])
    assert found.first == 0.5 and found.difference == pytest.approx(1 / 3)
    assert 0 < found.low < found.difference < found.high and found.p < 0.02
    same = compare(METRICS["accuracy"], ROWS, [bad, good], [bad, good])
    assert same.difference == 0 and same.low <= 0 <= same.high and same.p > 0.5
    assert compare(METRICS["accuracy"], ROWS, [bad], [bad]).p == 1.0


def test_equal_models_seldom_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "ROUNDS", 60)
    chance = np.random.default_rng(0)
    seen = [
        compare(METRICS["accuracy"], ROWS, [answers((chance.random(60) < 0.7).tolist())], [answers((chance.random(60) < 0.7).tolist())], seed=i).p
        for i in range(60)
    ]  # fmt: skip
    assert np.mean(np.array(seen) < 0.1) < 0.3
