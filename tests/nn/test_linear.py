"""Linear layers with packed matrices give the same products."""

from __future__ import annotations

import pytest
import torch

from pretune.nn import linear as linear_module
from pretune.nn.linear import MOST_PACKED_ROWS, Linear, has_packed_products


@pytest.mark.parametrize("rows", [1, 15, 40])
def test_a_packed_matrix_gives_the_same_product_until_the_weight_changes(rows: int) -> None:
    if not has_packed_products():
        pytest.skip("this build of torch has no products with packed matrices on this processor")
    torch.manual_seed(0)
    linear, x = Linear(24, 40), torch.randn(rows, 24)
    before = linear(x).detach()
    linear.pack()
    assert linear.packed_weight is not None
    with torch.no_grad():
        torch.testing.assert_close(linear(x), before, atol=1e-5, rtol=1e-5)
        linear.weight.mul_(2.0)
        torch.testing.assert_close(linear(x) - linear.bias, 2 * (before - linear.bias), atol=1e-5, rtol=1e-5)
    assert linear(x).requires_grad  # training uses the parameter
    assert set(linear.state_dict()) == {"weight", "bias"}


def test_few_numbers_of_rows_use_packed_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each number of rows costs memory that is never freed.
    if not has_packed_products():
        pytest.skip("this build of torch has no products with packed matrices on this processor")
    seen: set[int] = set()
    multiply = linear_module.multiply_packed

    def recorded(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.add(len(x))
        return multiply(x, packed, bias)

    monkeypatch.setattr(linear_module, "multiply_packed", recorded)
    linear = Linear(4, 4)
    linear.pack()
    with torch.no_grad():
        for rows in range(1, 100):
            linear(torch.zeros(rows, 4))
    assert seen == {*range(1, MOST_PACKED_ROWS + 1)}


def test_other_processors_keep_ordinary_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.nn.linear.platform.machine", lambda: "riscv64")
    assert not has_packed_products.__wrapped__()
    monkeypatch.setattr("pretune.nn.linear.has_packed_products", lambda: False)
    linear = Linear(4, 4)
    linear.pack()
    assert linear.packed_weight is None
