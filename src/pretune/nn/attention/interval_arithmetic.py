"""Rules asked of blocks of tokens at once: arithmetic of ranges.

A rule compares a column of a query with one of a key. Of a block, the lowest and the highest value of a column are known: the
same rule, asked of two such ranges, tells whether some pair of their tokens may keep it, and whether all do. What it tells
errs on one side alone: `some` may be too often true, `all` too seldom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Truth:
    """Of a comparison: of which pairs of blocks it may hold for some tokens, and of which it holds for all."""

    some: Tensor
    all: Tensor

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.some & other.some, self.all & other.all)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.some | other.some, self.all | other.all)

    def __invert__(self) -> Truth:
        return Truth(~self.all, ~self.some)


@dataclass(frozen=True, eq=False)
class Range:
    """Numbers from `low` to `high`, both among them. Other operands are ranges or plain numbers, divisors more than 0."""

    low: Tensor
    high: Tensor

    def __add__(self, other: Any) -> Range:
        low, high = _ends(other)
        return Range(self.low + low, self.high + high)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Range:
        low, high = _ends(other)
        return Range(self.low - high, self.high - low)

    def __rsub__(self, other: Any) -> Range:
        low, high = _ends(other)
        return Range(low - self.high, high - self.low)

    def __floordiv__(self, size: int) -> Range:
        return Range(self.low // size, self.high // size)

    def __mod__(self, size: int) -> Range:
        same = self.low // size == self.high // size
        return Range(torch.where(same, self.low % size, 0), torch.where(same, self.high % size, size - 1))

    def abs(self) -> Range:
        """How far from 0."""
        return Range(torch.maximum(self.low, -self.high).clamp(min=0), torch.maximum(self.high, -self.low))

    def __le__(self, other: Any) -> Truth:
        low, high = _ends(other)
        return Truth(self.low <= high, self.high <= low)

    def __ge__(self, other: Any) -> Truth:
        low, high = _ends(other)
        return Truth(self.high >= low, self.low >= high)

    def __lt__(self, other: Any) -> Truth:
        low, high = _ends(other)
        return Truth(self.low < high, self.high < low)

    def __gt__(self, other: Any) -> Truth:
        low, high = _ends(other)
        return Truth(self.high > low, self.low > high)

    def __eq__(self, other: Any) -> Truth:  # type: ignore[override]
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> Truth:  # type: ignore[override]
        return (self == other).__invert__()  # compiled models do not know the sign for it


def _ends(value: Any) -> tuple[Any, Any]:
    return (value.low, value.high) if isinstance(value, Range) else (value, value)


def chosen(table: Tensor, row: Any, column: Any) -> Any:
    """Whether the place in a table (rows, columns) of row and column is not 0; of ranges, for some or all places."""
    if not isinstance(row, Range):
        return table[row, column] != 0
    # How many of the places above and left of each are not 0: those of a rectangle come from its corners.
    counts = torch.zeros(table.shape[0] + 1, table.shape[1] + 1, dtype=torch.long, device=table.device)
    counts[1:, 1:] = (table != 0).cumsum(0).cumsum(1)
    top, bottom, left, right = row.low, row.high + 1, column.low, column.high + 1
    found = counts[bottom, right] - counts[top, right] - counts[bottom, left] + counts[top, left]
    return Truth(found > 0, found == (bottom - top) * (right - left))
