"""Train several small classifiers at once on the same examples, each stopped early by its own dev loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.runtime.progress import ProgressBar, SilentProgress

EPOCHS = 30
PATIENCE = 3  # epochs without a lower dev loss of any classifier
BATCH = 256
FEWEST_STEPS = 32  # per epoch: small data sets have smaller batches
SMALLEST_BATCH = 4


class ParallelClassifiers(nn.Module):
    """The base class of k classifiers that are trained at once on the same inputs: (n, …) → (n, k, classes)."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameters and their learning rates as parameter groups of a PyTorch optimizer."""
        raise NotImplementedError

    def decay(self) -> None:
        """Apply weight decay to the parameters in place; called after each optimizer step."""

    def snapshot(self) -> Tensor:
        """Return values to save for each classifier at its best epoch, such as its weight decay, (k, …)."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrainedClassifiers:
    """The dev scores and test logits of k classifiers, each at the epoch with its lowest dev loss."""

    dev_loss: Tensor  # (k,) mean negative log-likelihood
    dev_accuracy: Tensor  # (k,)
    test_logits: Tensor  # (k, n, classes)
    snapshot: Tensor  # (k, …) what the classifiers keep


def train_parallel(
    network: ParallelClassifiers,
    train: tuple[Tensor, Tensor],
    dev: tuple[Tensor, Tensor],
    test: Tensor,
    seed: int,
    bar: ProgressBar | None = None,
) -> TrainedClassifiers:
    """Train k classifiers with Adam until none of their dev losses falls; return the results of each at its best epoch.

    Parameters
    ----------
    network
        The classifiers.
    train, dev
        Inputs (n, …) and class numbers (n,).
    test
        The inputs of the test set, for which logits are returned.
    seed
        The seed of the order of the examples.
    bar
        Shows the epochs.
    """
    inputs, targets = train
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameter_groups())
    size = min(BATCH, max(SMALLEST_BATCH, len(inputs) // FEWEST_STEPS))
    shown = bar or SilentProgress()
    best: TrainedClassifiers | None = None
    waited = 0
    for epoch in range(EPOCHS):
        network.train()
        for rows in torch.split(torch.randperm(len(inputs), generator=generator), size):
            logits = network(inputs[rows])  # (b, k, classes)
            loss = _losses(logits, targets[rows]).mean(0).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            network.decay()
        now = _evaluate(network, dev, lambda: _predict(network, test))
        if best is None:
            best = now
        else:
            better = now.dev_loss < best.dev_loss - 1e-5
            waited = 0 if bool(better.any()) else waited + 1
            best = _choose(better, now, best)
        shown.update(epoch + 1)
        if waited == PATIENCE:
            break
    assert best is not None
    return best


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example under each classifier, (n, k), given logits (n, k, classes).

    `targets` has the class number of each example, (n,).
    """
    wanted = targets[:, None].expand(logits.shape[:2])
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)


@torch.no_grad()
def _predict(network: ParallelClassifiers, inputs: Tensor) -> Tensor:
    """Return the logits of k classifiers for n inputs, (n, k, classes)."""
    network.eval()
    return torch.cat([network(part) for part in torch.split(inputs, BATCH)])


@torch.no_grad()
def _evaluate(
    network: ParallelClassifiers, dev: tuple[Tensor, Tensor], predict: Callable[[], Tensor]
) -> TrainedClassifiers:
    logits = _predict(network, dev[0])
    accuracy = (logits.argmax(-1) == dev[1][:, None]).float().mean(0)
    loss = _losses(logits, dev[1]).mean(0)
    return TrainedClassifiers(loss, accuracy, predict().transpose(0, 1).contiguous(), network.snapshot().clone())


def _choose(better: Tensor, now: TrainedClassifiers, best: TrainedClassifiers) -> TrainedClassifiers:
    """Return the results of this epoch (`now`) for classifiers that improved, else the `best` earlier results.

    `better`, (k,), is true for the classifiers whose dev loss fell.
    """

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(better.view(-1, *[1] * (new.ndim - 1)), new, old)

    return TrainedClassifiers(
        *(pick(new, old) for new, old in zip(vars(now).values(), vars(best).values(), strict=True))
    )
