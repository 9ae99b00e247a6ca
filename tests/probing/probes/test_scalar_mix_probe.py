"""A scalar mix puts its weight on the layer that carries the label, and mixes of fewer layers cannot find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.probing.probes.layer_analysis import center_of_gravity, expected_layer
from pretune.probing.probes.scalar_mix_probe import CumulativeMixes, fit_scalar_mixes, normalize_layers
from pretune.probing.representations import SPLITS
from tests.support.probing import planted_vectors, random_task


@pytest.mark.parametrize("planted", [1, 3])
def test_planted_layer_gets_the_weight(planted: int, tmp_path: Path) -> None:
    task = random_task()
    vectors = planted_vectors(task, tmp_path, layers=5, planted=[planted])
    train, dev, test = (vectors.stack(split, range(5)) for split in SPLITS)
    normalize_layers(train, dev, test)
    mixes = fit_scalar_mixes((train, vectors.targets("train")), (dev, vectors.targets("dev")), test, classes=2, seed=0)
    right = (mixes.test_logits.argmax(-1) == vectors.targets("test")).mean(1)
    assert right[planted:].min() > 0.9 and right[:planted].max() < 0.75
    assert mixes.shares[-1].argmax() == planted and mixes.shares[-1, planted] > 0.5
    assert abs(center_of_gravity(range(5), mixes.shares[-1].tolist()) - planted) < 0.7
    found = expected_layer(range(5), right.tolist())
    assert found is not None and abs(found - planted) < 0.5
    assert np.allclose(mixes.shares.sum(1), 1, atol=1e-5) and (np.triu(mixes.shares, 1) == 0).all()


def test_normalized_layers_have_the_same_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(100, 3, 2, 4, generator=generator) * torch.tensor([1.0, 50.0, 0.0])[:, None, None] + 3
    dev = train[:10].clone()
    normalize_layers(train, dev)
    assert torch.allclose(train.mean(0).mean(1), torch.zeros(3, 4), atol=1e-3)
    assert torch.allclose(train.square().mean((0, 2, 3)), torch.tensor([1.0, 1.0, 0.0]), atol=1e-2)
    assert torch.equal(dev, train[:10])


def test_many_classes_use_a_product_of_two_matrices() -> None:
    few, many = (CumulativeMixes(2, 2, 8, classes, seed=0) for classes in (3, 500))
    assert [tuple(weight.shape) for weight in few.weights] == [(2, 24, 3)]
    assert [tuple(weight.shape) for weight in many.weights] == [(2, 24, 64), (2, 64, 500)]
    assert many(torch.zeros(5, 2, 2, 8)).shape == (5, 2, 500)
