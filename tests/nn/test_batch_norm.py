"""Batch normalization of packed sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pretune.nn.batch_norm import BatchNorm
from pretune.objectives.tasks.classify import HiddenLayer


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return 3 + 2 * torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


def test_training_matches_batch_norm_of_torch() -> None:
    ours, theirs = BatchNorm(5), nn.BatchNorm1d(5)
    x, y = rows(7).requires_grad_(), rows(7).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(y))
    weights = rows(7, 1)
    (ours(x) * weights).sum().backward()
    (theirs(y) * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_padding_does_not_change_the_statistics() -> None:
    norm, alone = BatchNorm(5), BatchNorm(5)
    real = torch.tensor([True, True, False, True, False])
    x = rows(5)
    torch.testing.assert_close(norm(x, real)[real], alone(x[real]))
    torch.testing.assert_close(norm.mean, alone.mean)
    torch.testing.assert_close(norm.variance, alone.variance)


def test_running_statistics_average_the_first_batches() -> None:
    norm = BatchNorm(5)
    batches = [rows(50, seed) for seed in range(6)]
    for batch in batches:
        norm(batch)
    torch.testing.assert_close(norm.mean, torch.stack([batch.mean(0) for batch in batches]).mean(0))
    norm.eval()
    x = rows(1)
    torch.testing.assert_close(norm(x), (x - norm.mean) / (norm.variance + norm.eps).sqrt())


def test_a_single_row_is_normalized_by_running_statistics() -> None:
    norm = BatchNorm(5)
    norm(rows(50))
    mean, variance = norm.mean.clone(), norm.variance.clone()
    x = rows(1, 3)
    torch.testing.assert_close(norm(x), (x - mean) / (variance + norm.eps).sqrt())
    torch.testing.assert_close(norm.mean, mean)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_small_differences_around_a_large_mean_are_learned(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    x = (3 * torch.randn(40) + 0.03 * (torch.randn(64, 40) + labels[:, None])).to(kind)
    hidden, output = HiddenLayer(40, 8, dropout=0.0), nn.Linear(8, 2)
    optimizer = torch.optim.Adam([*hidden.parameters(), *output.parameters()], lr=1e-2)
    for _ in range(60):
        loss = nn.functional.cross_entropy(output(hidden(x, None).float()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hidden.eval()
    assert (output(hidden(x, None).float()).argmax(1) == labels).float().mean() > 0.9
