"""Linear probes on scalar mixes of layers, cumulative as in Tenney et al. (2019): mix k has the layers 0 to k.

A mix is Σ softmax(s)_j · layer_j with learned s. Each layer is centered and divided by its standard deviation first, a single number,
so that the weights of layers of different scale can be compared. The mixes of all k are trained at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pretune.probing.probes.parallel_training import ParallelClassifiers, train_parallel
from pretune.probing.representations import combine
from pretune.runtime.arrays import Array
from pretune.runtime.progress import ProgressBar

MIX_RATE, WEIGHT_RATE = 3e-2, 3e-3  # learning rates of the mix and of the classifier
DECAY = 0.1  # weight decay per step, divided by the learning rate
MANY_CLASSES, RANK = 64, 64  # with more classes, the classifier is a product of two matrices of this rank


class CumulativeMixes(ParallelClassifiers):
    """One linear classifier per scalar mix of layers 0 to k: (n, layers, passages, width) → (n, mixes, classes).

    A passage is a text or a span of a text; an example has one or two.
    """

    mask: Tensor

    def __init__(self, layers: int, passages: int, width: int, classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        features = width if passages == 1 else 3 * width  # see `combine`
        self.register_buffer("mask", torch.full((layers, layers), -torch.inf).triu(1), persistent=False)
        self.scores = nn.Parameter(torch.zeros(layers, layers))
        shapes = [(features, classes)] if classes <= MANY_CLASSES else [(features, RANK), (RANK, classes)]
        self.weights = nn.ParameterList(
            0.5 * torch.randn(layers, *shape, generator=generator) / shape[0] ** 0.5 for shape in shapes
        )
        self.bias = nn.Parameter(torch.zeros(layers, classes))

    def shares(self) -> Tensor:
        """Return the weight of each layer in each mix, (mixes, layers); row k is 0 after layer k."""
        return (self.scores + self.mask).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all mixes: (n, layers, passages, width) → (n, mixes, classes)."""
        count, layers, passages, width = x.shape
        flat = x.transpose(0, 1).float().reshape(layers, -1)  # one large matrix product instead of many small ones
        mixed = (self.shares() @ flat).view(layers, count, passages, width)
        made = combine(mixed.unbind(2))  # (mixes, n, features)
        assert isinstance(made, Tensor)
        for weight in self.weights:
            made = torch.bmm(made, weight)
        return made.transpose(0, 1) + self.bias

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameters of the mixes and of the classifiers, with their learning rates."""
        rest = [self.bias, *self.weights]
        return [{"params": [self.scores], "lr": MIX_RATE}, {"params": rest, "lr": WEIGHT_RATE}]

    @torch.no_grad()
    def decay(self) -> None:
        """Apply weight decay to the weights of the classifiers, but not to those of the mixes."""
        for weight in self.weights:
            weight.mul_(1 - WEIGHT_RATE * DECAY)

    def snapshot(self) -> Tensor:
        """Return the weight of each layer in each mix, (mixes, layers)."""
        return self.shares().detach()


@dataclass(frozen=True)
class FittedMixes:
    """The trained probes on scalar mixes of layers 0 to k: mixing weights, test logits, and dev accuracies."""

    shares: Array  # (mixes, layers)
    test_logits: Array  # (mixes, n, classes)
    dev_accuracy: Array  # (mixes,)


def fit_scalar_mixes(
    train: tuple[Tensor, Array],
    dev: tuple[Tensor, Array],
    test: Tensor,
    classes: int,
    seed: int,
    bar: ProgressBar | None = None,
) -> FittedMixes:
    """Train linear probes on the scalar mixes of layers 0 to k, for all k.

    Parameters
    ----------
    train, dev
        Vectors of passages, (n, layers, passages, width), normalized by `normalize_layers`, and class numbers (n,).
    test
        Vectors of the test set, for which logits are returned, in the same layout and normalization.
    classes
        The number of classes.
    seed
        The seed of initial weights and of the order of the examples.
    bar
        Shows the epochs.

    >>> x = torch.tensor([[[[0.0]], [[-1.0]]], [[[0.0]], [[1.0]]]]).repeat(32, 1, 1, 1)  # the second layer has the label
    >>> y = torch.tensor([0, 1]).repeat(32).numpy()
    >>> mixes = fit_scalar_mixes((x, y), (x, y), x, classes=2, seed=0)
    >>> bool(mixes.shares[1, 1] > 0.5), mixes.dev_accuracy.tolist()
    (True, [0.5, 1.0])
    """
    _, layers, passages, width = train[0].shape
    network = CumulativeMixes(layers, passages, width, classes, seed)
    given = [(inputs, torch.from_numpy(targets)) for inputs, targets in (train, dev)]
    found = train_parallel(network, given[0], given[1], test, seed, bar)
    return FittedMixes(found.snapshot.numpy(), found.test_logits.numpy(), found.dev_accuracy.numpy())


def normalize_layers(train: Tensor, *others: Tensor) -> None:
    """Center each layer and divide it by its standard deviation, a single number per layer, in place.

    The means and deviations are computed on `train` and applied to `train` and `others`, (n, layers, passages, width)
    each.
    """
    for layer in range(train.shape[1]):
        rows = train[:, layer].float()
        mean = rows.mean((0, 1))
        scale = (rows - mean).square().mean().sqrt().clamp(min=1e-6)
        for part in (train, *others):
            part[:, layer] = (part[:, layer].float() - mean) / scale
