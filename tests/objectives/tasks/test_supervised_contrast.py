"""Tests of supervised contrastive learning: what its loss rewards, and that padding and lone classes do not count."""

from __future__ import annotations

import torch
from torch import tensor

from pretune.objectives.tasks.supervised_contrast import supervised_contrastive_losses

NEAR = tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, 0.1]])


def losses(classes: list[int], used: list[bool] | None = None, vectors: torch.Tensor = NEAR) -> torch.Tensor:
    return supervised_contrastive_losses(vectors, tensor(classes), tensor(used or [True] * len(classes)), 0.1)[0]


def test_near_texts_of_one_class_have_a_low_loss() -> None:
    assert losses([0, 0, 1, 1]).max() < 0.01 < 1 < losses([0, 1, 0, 1]).min()


def test_padding_changes_nothing() -> None:
    padded = torch.cat([NEAR, tensor([[1.0, 0.0]])])
    torch.testing.assert_close(losses([0, 0, 1, 1, 0], [True] * 4 + [False], padded)[:4], losses([0, 0, 1, 1]))


def test_a_lone_text_of_its_class_has_no_loss() -> None:
    assert losses([0, 1, 1, 1])[0] == 0


def test_the_gradient_brings_texts_of_a_class_together() -> None:
    vectors = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    classes = tensor([0, 1] * 4)
    for _ in range(200):
        loss = supervised_contrastive_losses(vectors, classes, torch.ones(8) > 0, 0.1)[0].mean()
        (gradient,) = torch.autograd.grad(loss, vectors)
        vectors = (vectors - 0.05 * gradient).detach().requires_grad_()
    unit = torch.nn.functional.normalize(vectors.detach(), dim=-1)
    same = (classes[:, None] == classes[None]) & ~torch.eye(8, dtype=torch.bool)
    cosines = unit @ unit.T
    assert cosines[same].mean() > 0.3 + cosines[classes[:, None] != classes[None]].mean()
