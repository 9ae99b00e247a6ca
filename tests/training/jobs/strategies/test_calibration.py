"""Tests of the calibration of strategies, and of its pull toward the class frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pretune.training.jobs.strategies.calibration import Calibration
from pretune.training.jobs.strategies.comparison import Comparison, calibrate


def test_calibration() -> None:
    half, shares = np.array([[0.5, 0.5]]), np.array([0.9, 0.1])
    np.testing.assert_allclose(Calibration(3.0).apply(half, shares, "classes"), half)
    np.testing.assert_allclose(Calibration().apply(np.array([[0.8, 0.3]]), shares, "labels"), [[0.8, 0.3]], atol=1e-6)
    np.testing.assert_allclose(Calibration(0.0, 1.0).apply(np.array([[0.1, 0.9]]), shares, "classes"), [shares])


@pytest.mark.parametrize(("first", "pulled"), [(13, False), (20, True)])
def test_predictions_are_pulled_toward_a_majority_only_if_it_is_a_clear_one(first: int, pulled: bool) -> None:
    """13 of 25 rows of one class are an accident, 20 are not; the predictions say nothing."""
    random = np.random.default_rng(0)
    targets = np.array([0] * first + [1] * (25 - first))
    right = random.uniform(0.1, 0.9, 25)
    comparison: Any = Comparison(None, None, np.arange(25) % 5, targets, "classes", 2, None)  # type: ignore[arg-type]
    assert bool(calibrate(comparison, np.stack([right, 1 - right], 1)).pull) == pulled
