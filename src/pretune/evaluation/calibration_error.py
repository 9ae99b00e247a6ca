"""Calibration of classifiers: expected calibration error and reliability diagram (Guo et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class Bin:
    """A bin of a reliability diagram: the mean confidence, the accuracy, and the number of the predictions in it."""

    sure: float  # mean confidence
    right: float  # accuracy
    count: int


def calibration(probabilities: Sequence[float], right: Sequence[bool]) -> tuple[float, list[Bin]]:
    """Return the expected calibration error and the bins from which it is computed.

    `probabilities` are the confidences of predictions, and `right` whether each prediction is correct.

    >>> calibration([0.75, 0.75, 0.75, 0.75], [True, True, True, False])[0]
    0.0
    """
    sure, hit = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        Bin(float(sure[inside].mean()), float(hit[inside].mean()), int(inside.sum()))
        for inside in (place == number for number in range(BINS))
        if inside.any()
    ]
    error = sum(abs(bin.sure - bin.right) * bin.count for bin in bins) / max(1, len(sure))
    return float(error), bins
