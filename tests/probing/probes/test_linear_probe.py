"""Linear probes equal scikit-learn's logistic regression, and choose the regularization by the dev loss."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pretune.probing.probes.linear_probe import ProbeFeatures, fit_linear_probe
from pretune.runtime.arrays import Array


def sample(classes: int, count: int = 400, width: int = 20, signal: float = 2.0) -> tuple[ProbeFeatures, list[Array]]:
    """Return features of three splits whose labels depend on them linearly, and the labels."""
    rng = np.random.default_rng(classes)
    x = (rng.normal(size=(3 * count, width)) @ rng.normal(size=(width, width))).astype(np.float32)
    logits = x @ rng.normal(size=(width, classes))
    y = (signal * logits / logits.std() + rng.gumbel(size=logits.shape)).argmax(1)
    return ProbeFeatures.make(*(part.copy() for part in np.split(x, 3))), np.split(y, 3)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_solution_is_that_of_scikit_learn(classes: int, strength: float) -> None:
    features, (train, dev, _) = sample(classes)
    found = fit_linear_probe(features, train, dev, classes, strengths=[strength])
    expected = LogisticRegression(C=strength if classes > 2 else 2 * strength, max_iter=2000, tol=1e-8)
    # With two classes, scikit-learn penalizes one vector, the difference of ours: w² where ours is 2 · (w / 2)².
    expected.fit(features.train, train)
    ours = np.exp(found.logits(features.test))
    assert np.abs(ours / ours.sum(1, keepdims=True) - expected.predict_proba(features.test)).max() < 0.02


def test_noise_gets_the_strongest_regularization_and_signal_a_weak_one() -> None:
    features, (train, dev, _) = sample(2, signal=8.0)
    assert fit_linear_probe(features, train, dev, 2).strength > 1e-3
    rng = np.random.default_rng(0)
    assert fit_linear_probe(features, rng.permutation(train), rng.permutation(dev), 2).strength <= 1e-3


def test_many_classes_and_constant_features() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(150, 60))
    y = np.tile(np.arange(150), 9)
    x = np.concatenate([means[y] + 0.3 * rng.normal(size=(len(y), 60)), np.ones((len(y), 4))], 1).astype(np.float32)
    features = ProbeFeatures.make(*(part.copy() for part in np.split(x, 3)))
    train, dev, test = np.split(y, 3)
    found = fit_linear_probe(features, train, dev, 150)
    assert (found.logits(features.test).argmax(1) == test).mean() > 0.9
    assert np.isfinite(found.weight).all()


def test_rows_choose_what_is_learned_from() -> None:
    features, (train, dev, _) = sample(2)
    rows = np.flatnonzero(train == 1)
    found = fit_linear_probe(features, train, dev, 2, rows=rows)
    assert (found.logits(features.test).argmax(1) == 1).all()
