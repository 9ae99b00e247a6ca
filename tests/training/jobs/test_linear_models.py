"""Tests of linear models on fixed features: rotation, missing classes, weights, and the choice of regularization."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.training.jobs.linear_models import (
    Rotation,
    Setting,
    cross_validate,
    fit_average,
    fit_linear,
    fit_standardized,
    losses,
    predictions,
)


def planted(rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the first one decides the class, and the classes."""
    x = np.random.default_rng(seed).normal(size=(rows, width))
    return x, (x[:, 0] > 0).astype(int)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 30), st.integers(1, 40), st.integers(0, 99))
def test_a_model_on_rotated_features_equals_one_on_the_features(rows: int, width: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(rows, width)) * 7 + 3
    y = np.arange(rows) % 2
    rotation = Rotation.make(x)
    model = fit_linear(rotation(x), y, "classes", 2, 0.1)
    other = np.random.default_rng(seed + 1).normal(size=(4, width))
    np.testing.assert_allclose(rotation.undo(model).predict(other), model.predict(rotation(other)), atol=1e-8)


def test_rotation_changes_no_prediction_of_a_regularized_model() -> None:
    x, y = planted(20, 60)
    standardized = (x - x.mean(0)) / x.std(0)
    plain = fit_linear(standardized, y, "classes", 2, 0.01).predict(standardized)
    np.testing.assert_allclose(fit_standardized(x, y, "classes", 2, {Setting(0.01): 1.0}).predict(x), plain, atol=1e-3)


def test_a_constant_feature_does_no_harm() -> None:
    x, y = planted(20, 3)
    x[:, 2] = 5.0
    assert (fit_standardized(x, y, "classes", 2, {Setting(1.0): 1.0}).predict(x).argmax(1) == y).mean() > 0.9


def test_a_class_without_examples_gets_almost_no_probability() -> None:
    x, y = planted(20, 3)
    found = fit_linear(x, y * 2, "classes", 3, 1.0).predict(x)
    assert found.shape == (20, 3) and found[:, 1].max() < 1e-6
    only = fit_linear(x, np.zeros(20, dtype=int), "classes", 3, 1.0).predict(x)
    assert (only.argmax(1) == 0).all()


def test_labels_that_all_or_no_rows_have() -> None:
    x, y = planted(20, 3)
    targets = np.stack([np.zeros(20), np.ones(20), y], 1)
    found = fit_linear(x, targets, "labels", 3, 10.0).predict(x)
    assert found[:, 0].max() < 0.01 and found[:, 1].min() > 0.99 and ((found[:, 2] > 0.5) == y).all()


def test_numbers() -> None:
    x, _ = planted(30, 4)
    model = fit_standardized(x, 2 * x[:, 1] + 1, "number", 1, {Setting(100.0): 1.0})
    np.testing.assert_allclose(model.predict(x), 2 * x[:, 1] + 1, atol=0.1)


def test_weights_move_the_decision() -> None:
    x = np.zeros((10, 1))
    y = np.array([0] * 8 + [1] * 2)
    weighted = fit_linear(x, y, "classes", 2, 1.0, np.where(y == 1, 10.0, 1.0))
    assert fit_linear(x, y, "classes", 2, 1.0).predict(x)[0].argmax() == 0 and weighted.predict(x)[0].argmax() == 1


def test_cross_validation_of_random_labels_stays_at_chance() -> None:
    """A control: with many more features than rows, a leak of the held-out rows would show as a high score."""
    hits = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(60, 300)), random.permutation(np.arange(60) % 2)
        hits.append((cross_validate(x, y, "classes", 2, np.arange(60) // 12).predicted.argmax(1) == y).mean())
    assert 0.35 < np.mean(hits) < 0.65


def test_more_rows_say_more_about_the_strength() -> None:
    largest = []
    for rows in (20, 320):
        x, y = planted(rows, 40)
        shares = cross_validate(x, y, "classes", 2, np.arange(rows) % 5).shares
        assert sum(shares.values()) == pytest.approx(1)
        largest.append(max(shares.values()))
    assert largest[0] < 0.6 and largest[1] > 0.9


def test_models_of_the_features_from_a_column_on_are_averaged_with_those_of_all() -> None:
    """The last two of 42 features decide; with many others, models that read only these two get most of the weight."""
    random = np.random.default_rng(0)
    y = random.permutation(np.arange(60) % 2)
    x = random.normal(size=(60, 42)) * 3 + 1
    x[:, 40:] += 4 * (2 * y[:, None] - 1)
    found = cross_validate(x, y, "classes", 2, np.arange(60) % 5, starts=(0, 40))
    assert {one.start for one in found.shares} == {0, 40} and sum(found.shares.values()) == pytest.approx(1)
    assert sum(share for one, share in found.shares.items() if one.start == 40) > 0.5
    average = fit_standardized(x, y, "classes", 2, found.shares)
    each = [
        share
        * fit_standardized(x[:, one.start :], y, "classes", 2, {Setting(one.strength): 1.0}).outputs(x[:, one.start :])
        for one, share in found.shares.items()
    ]
    np.testing.assert_allclose(average.outputs(x), sum(each), atol=1e-8)


def test_few_rows_with_a_weak_signal_do_not_become_the_majority_class() -> None:
    """The strongest regularization risks least if 13 of 25 rows have one class, but it would say only this class."""
    random = np.random.default_rng(0)
    shares = []
    for _ in range(8):
        y = random.permutation([0] * 13 + [1] * 12)
        x = random.normal(size=(25, 300)) + 0.12 * (2 * y[:, None] - 1)
        said = cross_validate(x, y, "classes", 2, np.arange(25) % 5).predicted.argmax(1)
        shares.append((said == 0).mean())
    assert 0.3 < np.mean(shares) < 0.7


def test_an_average_is_the_model_of_averaged_outputs() -> None:
    x, y = planted(30, 5)
    average = fit_average(x, y, "classes", 2, {Setting(0.01): 0.25, Setting(10.0): 0.75})
    parts = [
        share * fit_linear(x, y, "classes", 2, strength).outputs(x) for strength, share in ((0.01, 0.25), (10.0, 0.75))
    ]
    np.testing.assert_allclose(average.outputs(x), sum(parts), atol=1e-10)


@pytest.mark.parametrize("kind", ["classes", "labels", "number"])
def test_losses_are_lowest_for_the_truth(kind: str) -> None:
    targets = {"classes": np.array([0, 1]), "labels": np.array([[1, 0], [0, 1]]), "number": np.array([1.0, 2.0])}[kind]
    right = np.array([1.0, 2.0]) if kind == "number" else predictions(np.array([[9.0, -9.0], [-9.0, 9.0]]), kind)  # type: ignore[arg-type]
    wrong = right[::-1]
    assert losses(right, targets, kind).mean() < losses(wrong, targets, kind).mean()  # type: ignore[arg-type]
