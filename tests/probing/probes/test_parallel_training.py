"""Classifiers that are trained together keep their own best epoch."""

from __future__ import annotations

import torch

from pretune.probing.probes.parallel_training import TrainedClassifiers, _choose, train_parallel
from pretune.probing.probes.scalar_mix_probe import CumulativeMixes


def test_each_classifier_keeps_its_own_best_results() -> None:
    def results(value: float) -> TrainedClassifiers:
        return TrainedClassifiers(*(torch.full(shape, value) for shape in ((2,), (2,), (2, 3, 4), (2, 5))))

    chosen = _choose(torch.tensor([True, False]), results(1.0), results(2.0))
    for part in vars(chosen).values():
        assert bool((part[0] == 1).all()) and bool((part[1] == 2).all())


def test_classifiers_do_not_influence_each_other() -> None:
    """The mix of layer 0 alone is trained the same way, whatever the layers above contain."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 2, 1, 3, generator=generator)
    y = (x[:, 0, 0, 0] > 0).long()
    other = x.clone()
    other[:, 1] = torch.randn(64, 1, 3, generator=generator)
    found = [
        train_parallel(CumulativeMixes(2, 1, 3, 2, seed=0), (inputs, y), (inputs, y), inputs, seed=0)
        for inputs in (x, other)
    ]
    # Both run until neither falls any more, which may be later in one case: compare the first only where it stopped.
    assert abs(float(found[0].dev_loss[0] - found[1].dev_loss[0])) < 0.05
    assert float(found[0].dev_accuracy[0]) > 0.9
