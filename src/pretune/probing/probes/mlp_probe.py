"""MLP probes: one hidden layer; the weight decay is chosen and the training is stopped by the dev loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pretune.probing.probes.linear_probe import ProbeFeatures
from pretune.probing.probes.parallel_training import ParallelClassifiers, train_parallel
from pretune.runtime.arrays import Array

HIDDEN = 64
DECAYS = (0.01, 1.0)  # weight decay per step, divided by the learning rate
LEARNING_RATE = 1e-3


class ParallelMLPs(ParallelClassifiers):
    """k MLPs with one hidden layer, trained at once with different weight decays: (n, features) → (n, k, classes)."""

    def __init__(self, features: int, classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * shape[1] ** -0.5)

        count = len(DECAYS)
        self.inner, self.outer = draw(count, features, HIDDEN), draw(count, HIDDEN, classes)
        self.inner_bias = nn.Parameter(torch.zeros(count, HIDDEN))
        self.outer_bias = nn.Parameter(torch.zeros(count, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all MLPs: (n, features) → (n, k, classes)."""
        hidden = (torch.einsum("nf,kfh->nkh", x, self.inner) + self.inner_bias).relu()
        return torch.einsum("nkh,khc->nkc", hidden, self.outer) + self.outer_bias

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return one parameter group for the optimizer: all parameters, with the same learning rate."""
        return [{"params": list(self.parameters()), "lr": LEARNING_RATE}]

    @torch.no_grad()
    def decay(self) -> None:
        """Multiply the weights of each MLP by the factor of its weight decay, in place; biases do not decay."""
        kept = (1 - LEARNING_RATE * torch.tensor(DECAYS))[:, None, None]
        self.inner.mul_(kept)
        self.outer.mul_(kept)

    def snapshot(self) -> Tensor:
        """Return the weight decay of each MLP, (k,)."""
        return torch.tensor(DECAYS)


@dataclass(frozen=True)
class FittedMLP:
    """The results of the MLP probe with the lowest dev loss: test logits, dev loss and accuracy, and weight decay."""

    test_logits: Array  # (n, classes)
    dev_loss: float
    dev_accuracy: float
    weight_decay: float


def fit_mlp_probe(features: ProbeFeatures, targets: Array, dev_targets: Array, classes: int, seed: int) -> FittedMLP:
    """Train MLPs with several weight decays on standardized features, and return the one with the lowest dev loss.

    >>> import numpy as np
    >>> x = np.array([[-1.0], [1.0], [-2.0], [2.0]] * 8, dtype=np.float32)
    >>> y = np.array([0, 1, 0, 1] * 8)
    >>> fit_mlp_probe(ProbeFeatures.make(x, x.copy(), x.copy()), y, y, 2, seed=0).dev_accuracy
    1.0
    """
    network = ParallelMLPs(features.train.shape[1], classes, seed)
    train = torch.from_numpy(features.train), torch.from_numpy(targets)
    dev = torch.from_numpy(features.dev), torch.from_numpy(dev_targets)
    found = train_parallel(network, train, dev, torch.from_numpy(features.test), seed)
    best = int(found.dev_loss.argmin())
    return FittedMLP(
        found.test_logits[best].numpy(),
        float(found.dev_loss[best]),
        float(found.dev_accuracy[best]),
        float(found.snapshot[best]),
    )
