"""Permutations of rows, and their gradients."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pretune.nn.attention.query_key_layout import permute_rows


@given(st.permutations(range(7)))
def test_gradients_match_indexing(order: list[int]) -> None:
    there = torch.tensor(order)
    back = there.argsort()
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(7, 3, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((x[there] * weights).sum(), x)
    (found,) = torch.autograd.grad((permute_rows(x, there, back) * weights).sum(), x)
    assert torch.equal(found, wanted)
    assert torch.equal(permute_rows(permute_rows(x, there, back), back, there), x)


def test_an_involution_needs_no_inverse() -> None:
    turn = torch.tensor([2, 1, 0, 4, 3])
    x = torch.randn(5, 2, requires_grad=True)
    (found,) = torch.autograd.grad((permute_rows(x, turn) * torch.arange(5.0)[:, None]).sum(), x)
    assert torch.equal(found[:, 0], turn.float())
