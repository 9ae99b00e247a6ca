"""Calibrate predicted probabilities: one temperature, and a pull toward the class frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.runtime.arrays import Array
from pretune.training.jobs.linear_models import Kind, predictions


@dataclass(frozen=True)
class Calibration:
    """A calibration of logits: sharpness · logits + pull · log(class frequencies).

    With a small sharpness and a pull of 1, the most frequent class is always predicted; this suits a model that has
    learned nothing.
    """

    sharpness: float = 1.0
    pull: float = 0.0

    def apply(self, predicted: Array, frequencies: Array, kind: Kind) -> Array:
        """Return calibrated probabilities, (rows, classes), given class frequencies, (classes,).

        The predictions of regression (kind "number") are returned unchanged.
        """
        if kind == "number":
            return predicted
        logits = np.log(np.clip(predicted, 1e-9, 1))
        if kind == "labels":
            logits = logits - np.log(np.clip(1 - predicted, 1e-9, 1))
        return predictions(self.sharpness * logits + self.bias(frequencies, kind), kind)

    def bias(self, frequencies: Array, kind: Kind) -> Array:
        """Return the bias, (classes,), that the calibration adds to the logits, given class frequencies, (classes,)."""
        known = np.clip(frequencies, 1e-3, 1 - 1e-3)
        return self.pull * (np.log(known) if kind == "classes" else np.log(known / (1 - known)))


def has_clear_majority(targets: Array) -> bool:
    """Return whether the most frequent class leads the second one by more than two standard errors.

    >>> has_clear_majority(np.array([0] * 13 + [1] * 12)), has_clear_majority(np.array([0] * 19 + [1] * 6))
    (False, True)
    """
    second, first = np.sort(np.bincount(targets, minlength=2))[-2:]
    return bool(first - second > 2 * (first + second) ** 0.5)
