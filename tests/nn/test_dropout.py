"""Dropout masks: statistics, seeds, and agreement between CPU and GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pretune.nn.dropout import Dropout, dropout_mask, dropout_mask_cuda, hash_bits, share_dropout_seed


def test_dropout_keeps_the_mean_and_is_off_in_evaluation() -> None:
    layer = Dropout(0.3)
    x = torch.ones(400, 500, requires_grad=True)
    y = layer(x)
    assert abs(float((y == 0).float().mean()) - 0.3) < 0.005
    assert abs(float(y.mean()) - 1.0) < 0.01
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # the gradient has the same mask
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_masks_depend_on_seed_and_layer_only() -> None:
    root = nn.ModuleList([Dropout(0.5), Dropout(0.5)])
    seed = share_dropout_seed(root, torch.device("cpu"))
    x = torch.ones(1000)
    seed.fill_(1)
    first, second = root[0](x), root[1](x)
    assert torch.equal(first, root[0](x))
    assert abs(float((first == second).float().mean()) - 0.5) < 0.06
    seed.fill_(2)
    assert abs(float((first == root[0](x)).float().mean()) - 0.5) < 0.06


def test_a_layer_at_several_depths_draws_another_mask_at_each() -> None:
    layer, x = Dropout(0.5), torch.ones(1000)
    assert torch.equal(layer(x), layer(x, 0)) and torch.equal(layer(x, 3), layer(x, 3))
    assert abs(float((layer(x, 0) == layer(x, 3)).float().mean()) - 0.5) < 0.06


def test_random_bits_are_uniform_and_neighbors_independent() -> None:
    bits = hash_bits(torch.arange(200_000, dtype=torch.int32), torch.tensor(7, dtype=torch.int32)).double() / (1 << 24)
    assert bits.min() >= 0 and bits.max() < 1
    assert abs(float(bits.mean()) - 0.5) < 0.003
    correlation = torch.corrcoef(torch.stack([bits[:-1], bits[1:]]))[0, 1]
    assert abs(float(correlation)) < 0.01


@pytest.mark.gpu
def test_the_gpu_operator_returns_the_same_mask() -> None:
    seed = torch.tensor(123456789, dtype=torch.int32)
    assert torch.equal(dropout_mask_cuda(seed.cuda(), 70_001, 0.4, 7).cpu(), dropout_mask(seed, 70_001, 0.4, 7))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_dropout_factors_on_gpu_match_the_cpu(kind: torch.dtype) -> None:
    layer, like = Dropout(0.4), torch.zeros(3, 1150, dtype=kind)
    layer.salt, layer.seed = 7, torch.tensor(123456789, dtype=torch.int32)
    expected = layer.factors(61, like)
    layer.seed = layer.seed.cuda()
    assert torch.equal(layer.factors(61, like.cuda()).cpu(), expected)
