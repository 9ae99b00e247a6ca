"""Define intervals of valid numbers, and check numbers in options and files against them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pretune.runtime.errors import PretuneError, quote


@dataclass(frozen=True)
class Interval:
    """An interval of finite numbers from `low` to `high`, both inclusive unless excluded.

    If `above` is True, `low` itself is excluded; if `below` is True, `high` itself is excluded.

    >>> str(Interval(0, 1, below=True)), 1.0 in Interval(0, 1, below=True), float("nan") in Interval(0)
    ('at least 0 and below 1', False, False)
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.above else self.low <= value
        return above and (value < self.high if self.below or self.high == math.inf else value <= self.high)

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        if self.high == math.inf:
            return f"{low} and finite"
        return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"


FRACTION = Interval(0, 1)
FRACTION_BELOW_1 = Interval(0, 1, below=True)
POSITIVE, NOT_NEGATIVE = Interval(0, above=True), Interval(0)
COUNT = Interval(1, 1e12)  # a larger count is a mistake


def check_number(name: str, value: float | None, within: Interval) -> None:
    """Raise an error if a number is outside the interval `within`; None is always valid.

    `name` is the name of the option or setting, for the error.

    >>> check_number("--epochs", -1.0, POSITIVE)
    Traceback (most recent call last):
    pretune.runtime.errors.PretuneError: --epochs=-1.0: expected a number that is above 0 and finite
    """
    if value is not None and value not in within:
        raise PretuneError(f"{name}={quote(value)}: expected a number that is {within}")
