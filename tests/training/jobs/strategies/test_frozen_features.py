"""Tests of linear classifiers on frozen features as a strategy."""

from __future__ import annotations

from pretune.training.jobs.strategies.frozen_features import name_layers, with_features


def test_expressions() -> None:
    assert with_features("regress", "layers(2,4)", "mean") == "regress(pooling=mean) on layers(2,4)"
    assert with_features("classify(pooling=max)", "last", "mean") == "classify(pooling=max) on last"
    assert name_layers({8, 10}) == "layers(8,10)"
