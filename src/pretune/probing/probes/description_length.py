"""Minimum description length probing with the online code (Voita and Titov, 2020).

The labels of the training set are transmitted in portions, each encoded with a probe that was fitted to all portions before it; the
first has a uniform code. A representation that makes a property easy to learn has a short code.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pretune.probing.probes.linear_probe import ProbeFeatures, fit_linear_probe
from pretune.runtime.arrays import Array, softmax
from pretune.training.jobs.linear_models import losses

PORTIONS = (
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.0625,
    0.125,
    0.25,
    0.5,
    1.0,
)  # of the training set, as in the paper
SMALLEST = 8  # examples of the first portion


@dataclass(frozen=True)
class DescriptionLength:
    """The lengths in bits of two codes for the labels of a task: the online code, and a uniform code to compare."""

    codelength: float
    uniform: float

    @property
    def compression(self) -> float:
        """Return the compression: the length of the uniform code divided by that of the online code.

        >>> DescriptionLength(50.0, 100.0).compression
        2.0
        """
        return self.uniform / self.codelength


def online_codelength(
    features: ProbeFeatures, targets: Array, dev_targets: Array, classes: int, seed: int = 0
) -> DescriptionLength:
    """Return the description length of the training labels: their online code with linear probes, in bits.

    Parameters
    ----------
    features
        The standardized features of a layer.
    targets
        Class numbers of the training rows, (n,).
    dev_targets
        Class numbers of the dev rows, on which the regularization of each probe is chosen.
    classes
        The number of classes.
    seed
        The seed of the order in which labels are transmitted.
    """
    count = len(targets)
    order = np.random.default_rng(seed).permutation(count)
    ends = sorted({min(count, max(SMALLEST, round(share * count))) for share in PORTIONS})
    bits = ends[0] * np.log2(classes)
    for known, end in pairwise(ends):
        probe = fit_linear_probe(features, targets, dev_targets, classes, rows=order[:known])
        now = order[known:end]
        predicted = softmax(probe.logits(features.train[now]).astype(np.float64))
        bits += losses(predicted, targets[now], "classes").sum() / np.log(2)
    return DescriptionLength(float(bits), float(count * np.log2(classes)))
