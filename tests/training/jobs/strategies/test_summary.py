"""Tests of what a comparison of strategies reports about its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.strategies.comparison import Attempt, Candidate, Comparison
from pretune.training.jobs.strategies.summary import describe_choice, learning_curve


class Material:
    """What a summary reads of the data of a task."""

    primary_metric = "accuracy"


@dataclass
class Rows(Material):
    """The rows of a task."""

    rows: LabeledRows


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


def test_a_stronger_strategy_with_a_higher_loss_is_explained() -> None:
    targets = np.ones(40, dtype=int)
    comparison: Any = Accuracy(None, Material(), targets, targets, "classes", 2, None)  # type: ignore[arg-type]
    best, second = (
        attempt(comparison, "LoRA", np.full(40, 0.51)),
        attempt(comparison, "a bag of words", np.full(40, 0.6)),
    )
    (line,) = describe_choice(comparison, [best, second], best, {})
    assert "kept because a bag of words (1.000) is not clearly better" in line


@pytest.mark.parametrize(("share", "features", "height"), [(0.0, True, 0.9), (1.0, True, 0.0), (0.0, False, 0.0)])
def test_the_learning_curve_is_that_of_the_features_unless_words_won(
    share: float, features: bool, height: float
) -> None:
    """The features decide; the texts say nothing."""
    targets = np.arange(40) % 2
    rows = LabeledRows(Path("x.csv"), {}, [f"text {i // 2}" for i in range(40)], None, [str(x) for x in targets])
    folds, plan = np.arange(40) // 2 % 4, SimpleNamespace(seed=0)
    comparison: Any = Accuracy(plan, Rows(rows), folds, targets, "classes", 2, None)  # type: ignore[arg-type]
    if features:
        comparison.vectors = np.random.default_rng(0).normal(size=(40, 6)) + 3 * (2 * targets[:, None] - 1)
    best = Attempt(Candidate("frozen features", "classify", "features"), np.zeros((40, 2)), 0.0, share=share)
    curve = learning_curve(comparison, best)
    assert list(curve) == [10, 20, 40] and ((curve[40] > height) if height else (curve[40] < 0.7))


@pytest.mark.parametrize(("full", "words"), [(0.7, "worth about +0.100 accuracy"), (0.6, "worth little")])
def test_the_worth_of_more_labels_is_that_of_the_last_doubling(full: float, words: str) -> None:
    targets = np.ones(40, dtype=int)
    comparison: Any = Accuracy(None, Material(), targets, targets, "classes", 2, None)  # type: ignore[arg-type]
    best = attempt(comparison, "frozen features", np.full(40, 0.55))
    (line,) = describe_choice(comparison, [best], best, {10: 0.5, 20: 0.6, 40: full})
    assert "doubling them to 40" in line and words in line
