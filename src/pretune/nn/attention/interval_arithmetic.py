"""Interval arithmetic, which evaluates the rule of an attention pattern for whole blocks of tokens.

A rule compares columns of a query with columns of a key. Evaluated on intervals, from the lowest to the highest value
of a column in a block, the same rule tells whether some pair of tokens may satisfy it and whether all pairs do. The
result is conservative: `some` may be true although no pair satisfies the rule, and `all` may be false although all
pairs do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IntervalMask:
    """The result of comparing intervals: `some` says where the comparison may hold, `all` where it certainly does."""

    some: Tensor
    all: Tensor

    def __and__(self, other: IntervalMask) -> IntervalMask:
        return IntervalMask(self.some & other.some, self.all & other.all)

    def __or__(self, other: IntervalMask) -> IntervalMask:
        return IntervalMask(self.some | other.some, self.all | other.all)

    def __invert__(self) -> IntervalMask:
        return IntervalMask(~self.all, ~self.some)


@dataclass(frozen=True, eq=False)
class ValueInterval:
    """Closed intervals from `low` to `high`, with arithmetic and comparisons; divisors must be positive."""

    low: Tensor
    high: Tensor

    def __add__(self, other: Any) -> ValueInterval:
        low, high = _ends(other)
        return ValueInterval(self.low + low, self.high + high)

    __radd__ = __add__

    def __sub__(self, other: Any) -> ValueInterval:
        low, high = _ends(other)
        return ValueInterval(self.low - high, self.high - low)

    def __rsub__(self, other: Any) -> ValueInterval:
        low, high = _ends(other)
        return ValueInterval(low - self.high, high - self.low)

    def __floordiv__(self, size: int) -> ValueInterval:
        return ValueInterval(self.low // size, self.high // size)

    def __mod__(self, size: int) -> ValueInterval:
        same = self.low // size == self.high // size
        return ValueInterval(torch.where(same, self.low % size, 0), torch.where(same, self.high % size, size - 1))

    def abs(self) -> ValueInterval:
        """Return the interval of the absolute values of all numbers in this interval."""
        return ValueInterval(torch.maximum(self.low, -self.high).clamp(min=0), torch.maximum(self.high, -self.low))

    def __le__(self, other: Any) -> IntervalMask:
        low, high = _ends(other)
        return IntervalMask(self.low <= high, self.high <= low)

    def __ge__(self, other: Any) -> IntervalMask:
        low, high = _ends(other)
        return IntervalMask(self.high >= low, self.low >= high)

    def __lt__(self, other: Any) -> IntervalMask:
        low, high = _ends(other)
        return IntervalMask(self.low < high, self.high < low)

    def __gt__(self, other: Any) -> IntervalMask:
        low, high = _ends(other)
        return IntervalMask(self.high > low, self.low > high)

    def __eq__(self, other: Any) -> IntervalMask:  # type: ignore[override]
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> IntervalMask:  # type: ignore[override]
        return (self == other).__invert__()  # torch.compile does not support ~ here


def _ends(value: Any) -> tuple[Any, Any]:
    return (value.low, value.high) if isinstance(value, ValueInterval) else (value, value)


def lookup(table: Tensor, row: Any, column: Any) -> Any:
    """Return whether the entries table[row, column] are nonzero.

    If `row` and `column` are intervals of indices, return for each rectangle of the table whether it has a nonzero
    entry and whether all of its entries are nonzero.
    """
    if not isinstance(row, ValueInterval):
        return table[row, column] != 0
    # Counts of entries that are not 0 above and left of each place: those of a rectangle follow from its corners.
    counts = torch.zeros(table.shape[0] + 1, table.shape[1] + 1, dtype=torch.long, device=table.device)
    counts[1:, 1:] = (table != 0).cumsum(0).cumsum(1)
    top, bottom, left, right = row.low, row.high + 1, column.low, column.high + 1
    found = counts[bottom, right] - counts[top, right] - counts[bottom, left] + counts[top, left]
    return IntervalMask(found > 0, found == (bottom - top) * (right - left))
