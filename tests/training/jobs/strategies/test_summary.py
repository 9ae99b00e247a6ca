"""Tests of what a comparison of strategies reports about its attempts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pretune.training.jobs.strategies.comparison import Attempt, Candidate, Comparison
from pretune.training.jobs.strategies.summary import describe_choice


class Material:
    """What a summary reads of the data of a task."""

    primary_metric = "accuracy"


class Accuracy(Comparison):
    """A comparison of 40 rows of class 1 that scores by accuracy without a task."""

    def score(self, predicted: Any, rows: Any = None) -> float:
        return float((predicted.argmax(1) == self.targets).mean())


def attempt(comparison: Comparison, name: str, sure: Any) -> Attempt:
    found = Attempt(Candidate(name, "classify", "features"), np.stack([1 - sure, sure], 1), 0.0)
    found.loss = float(comparison.losses(found.predicted).mean())
    return found


@pytest.mark.parametrize(("spread", "words"), [(0.01, "clearly better than"), (0.4, "not clearly better than")])
def test_the_gap_to_the_second_is_called_clear_only_beyond_its_noise(spread: float, words: str) -> None:
    targets = np.ones(40, dtype=int)
    comparison: Any = Accuracy(None, Material(), targets, targets, "classes", 2, None)  # type: ignore[arg-type]
    noise = spread * np.resize([0.5, -0.5], 40)
    best = attempt(comparison, "frozen features", np.full(40, 0.51))
    second = attempt(comparison, "a bag of words", 0.5 + noise)
    (line,) = describe_choice(comparison, [best, second], best, {})
    assert line.startswith("best: frozen features (accuracy 1.000), ") and f", {words} a bag of words" in line
    assert ("not clearly" in line) == words.startswith("not")


@pytest.mark.parametrize(("full", "words"), [(0.7, "worth about +0.100 accuracy"), (0.6, "worth little")])
def test_the_worth_of_more_labels_is_that_of_the_last_doubling(full: float, words: str) -> None:
    targets = np.ones(40, dtype=int)
    comparison: Any = Accuracy(None, Material(), targets, targets, "classes", 2, None)  # type: ignore[arg-type]
    best = attempt(comparison, "frozen features", np.full(40, 0.55))
    (line,) = describe_choice(comparison, [best], best, {10: 0.5, 20: 0.6, 40: full})
    assert "doubling them to 40" in line and words in line
