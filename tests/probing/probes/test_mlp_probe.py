"""An MLP probe finds what a linear one cannot, and gives the same result for the same seed."""

from __future__ import annotations

import numpy as np

from pretune.probing.probes.linear_probe import ProbeFeatures, fit_linear_probe
from pretune.probing.probes.mlp_probe import DECAYS, fit_mlp_probe


def test_exclusive_or_is_found_by_an_mlp_only() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, size=(600, 2))
    x = (2 * bits - 1 + 0.2 * rng.normal(size=bits.shape)).astype(np.float32)
    train, dev, test = np.split(bits[:, 0] ^ bits[:, 1], 3)
    features = ProbeFeatures.make(*(part.copy() for part in np.split(x, 3)))
    found = fit_mlp_probe(features, train, dev, 2, seed=1)
    assert (found.test_logits.argmax(1) == test).mean() > 0.95 and found.weight_decay in np.float32(DECAYS)
    linear = fit_linear_probe(features, train, dev, 2)
    assert (linear.logits(features.test).argmax(1) == test).mean() < 0.7
    assert np.array_equal(found.test_logits, fit_mlp_probe(features, train, dev, 2, seed=1).test_logits)
