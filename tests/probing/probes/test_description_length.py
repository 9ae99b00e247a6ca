"""The online code of noise is as long as a uniform code; that of a property which the features carry is short."""

from __future__ import annotations

import numpy as np
import pytest

from pretune.probing.probes.description_length import online_codelength
from pretune.probing.probes.linear_probe import ProbeFeatures


@pytest.mark.parametrize("classes", [2, 6])
def test_noise_has_a_uniform_codelength_and_signal_a_short_one(classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 1800)
    x = rng.normal(size=(1800, 16)).astype(np.float32)
    train, dev, _ = np.split(y, 3)
    noise = online_codelength(ProbeFeatures.make(*(part.copy() for part in np.split(x, 3))), train, dev, classes)
    assert noise.uniform == pytest.approx(600 * np.log2(classes))
    assert 0.85 < noise.compression < 1.05
    x[:, :classes] += 6 * np.eye(classes, dtype=np.float32)[y]
    signal = online_codelength(ProbeFeatures.make(*(part.copy() for part in np.split(x, 3))), train, dev, classes)
    assert signal.compression > 4 and signal.codelength > 0


def test_few_examples_are_all_encoded_uniformly() -> None:
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    features = ProbeFeatures.make(x.copy(), x.copy(), x.copy())
    found = online_codelength(features, np.array([0, 1] * 3), np.array([0, 1] * 3), 2)
    assert found.codelength == found.uniform == 6
