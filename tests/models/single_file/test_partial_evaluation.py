"""Tests of partial evaluation: what is known is folded, and what is not stays."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from torch import nn

from pretune.models.single_file.partial_evaluation import Scope, fold_function
from pretune.nn.dropout import Dropout


class Layer(nn.Module):
    """A module with a setting, a norm or none, and dropout."""

    def __init__(self, size: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.size, self.norm, self.dropout = size, norm, Dropout(0.1)


def fold(body: str, *instances: nn.Module, constants: dict[str, Any] | None = None, **scope: Any) -> str:
    """Return the body of a folded method."""
    node = ast.parse(f"def forward(self, x, mode=None):\n {body}").body[0]
    assert isinstance(node, ast.FunctionDef)
    made = fold_function(node, Scope({"torch": torch}, instances, constants or {}, **scope))
    return "; ".join(map(ast.unparse, made.body)).replace("\n", " ")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x if self.norm is None else self.norm(x)", "return x"),
        ("return self.dropout(x, 3)", "return x"),
        ("return x + 1 if self.training else x", "return x"),
        ("return x if self.size > 3 and unknown else 0", "return 0"),
        ("return x if self.size < 3 and unknown else 0", "return x if unknown else 0"),
        ("y = None; return x if y is None else y", "return x"),
        ("return x; x = 2", "return x"),
    ],
)
def test_attributes_that_all_modules_share_are_known(body: str, expected: str) -> None:
    assert fold(body, Layer(2), Layer(2)) == expected


def test_attributes_that_differ_are_not_known() -> None:
    body = "return x if self.size == 2 else -x"
    assert fold(body, Layer(2), Layer(3)) == body
    body = "return x if self.norm is None else self.norm(x)"
    assert fold(body, Layer(2), Layer(2, nn.LayerNorm(2))) == body
    assert fold(body, Layer(2, nn.LayerNorm(2)), Layer(3, nn.Identity())) == "return self.norm(x)"


def test_columns_and_constant_arguments_are_known() -> None:
    columns = frozenset({"segment"})
    assert fold("return packed.columns.get('segment')", columns=columns) == "return packed.columns['segment']"
    assert fold("return packed.columns.get('global')", columns=columns) == "return None"
    assert fold("return [f(i) for i in mode]", constants={"mode": ("a", "b")}) == "return [f('a'), f('b')]"
    assert fold("return x if mode == 'cls' else 0", constants={"mode": "cls"}) == "return x"
