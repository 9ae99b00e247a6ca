"""Compare two arms by their scores over seeds, with Welch's t-test (Welch, 1947), and check expectations.

The interval of a difference has a confidence of 95 % for all comparisons of a study together: with k comparisons, each has one of
1 - 0.05/k (Bonferroni), so that trying many arms does not make a difference appear. Fewer than three seeds never show a difference:
the spread of two scores says next to nothing about the spread of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, variance
from typing import ClassVar, Literal

LEAST_SEEDS = 3  # of both arms, to show a difference
LEVEL = 0.95  # for all comparisons together

Conclusion = Literal["better", "worse", "open"]


@dataclass(frozen=True)
class Comparison:
    """The comparison of two arms (compared recipes) by the scores that their runs with several seeds have on a metric.

    A positive difference means that the first arm is better. `comparisons` is the number of comparisons that share the
    confidence of 95 %.
    """

    first: str
    second: str
    metric: str  # EVALUATION.METRIC
    first_scores: tuple[float, ...]  # one per seed, as they are shown
    second_scores: tuple[float, ...]
    lower_is_better: bool = False
    unit: str = ""  # of the difference, such as points
    comparisons: int = 1  # that share the confidence
    unscored: ClassVar[str] = "failed"  # why there are no scores

    @property
    def seeds(self) -> int:
        """The number of seeds that have scores, for the arm that has fewer of them."""
        return min(len(self.first_scores), len(self.second_scores))

    @cached_property
    def difference(self) -> float:
        """How much better the mean score of the first arm is; not a number (NaN) if one of the arms has no score."""
        if not self.seeds:
            return math.nan
        difference = mean(self.first_scores) - mean(self.second_scores)
        return -difference if self.lower_is_better else difference

    @property
    def confidence(self) -> float:
        """The confidence level of the interval, from 0 to 1, with a Bonferroni correction for all comparisons."""
        return 1 - (1 - LEVEL) / self.comparisons

    @cached_property
    def standard_error(self) -> float:
        """The standard error of the difference; not a number (NaN) with fewer than two seeds."""
        if self.seeds < 2:
            return math.nan
        return math.sqrt(sum(variance(scores) / len(scores) for scores in (self.first_scores, self.second_scores)))

    @cached_property
    def half_width(self) -> float:
        """Half of the width of the difference's confidence interval; NaN if the scores of different seeds are equal."""
        from scipy.stats import t

        if not self.has_spread:
            return math.nan
        return float(t.ppf((1 + self.confidence) / 2, self.degrees_of_freedom)) * self.standard_error

    @property
    def has_spread(self) -> bool:
        """Whether the scores of different seeds differ, so that the spread of the difference can be estimated."""
        return self.standard_error > 0

    @property
    def degrees_of_freedom(self) -> float:
        """The degrees of freedom of Welch's t-test on the scores of both arms."""
        parts = [
            (variance(scores) / len(scores), len(scores) - 1) for scores in (self.first_scores, self.second_scores)
        ]
        return float(sum(part for part, _ in parts) ** 2 / sum(part**2 / free for part, free in parts))

    @property
    def p(self) -> float:
        """The two-sided p-value of Welch's t-test, not corrected for the number of comparisons."""
        from scipy.stats import t

        if not self.has_spread:
            return math.nan
        return float(2 * t.sf(abs(self.difference) / self.standard_error, self.degrees_of_freedom))

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and the upper end of the confidence interval of the difference."""
        return self.difference - self.half_width, self.difference + self.half_width

    @property
    def can_conclude(self) -> bool:
        """Whether there are enough seeds, with scores that differ, to draw a conclusion at all."""
        return self.seeds >= LEAST_SEEDS and self.has_spread

    @property
    def conclusion(self) -> Conclusion:
        """Whether the first arm is shown to be "better" or "worse" than the second; else, the result is "open"."""
        return self.against(0.0)

    def against(self, amount: float) -> Conclusion:
        """Return whether the difference is shown to be above `amount` ("better") or below it ("worse"), else "open".

        >>> comparison = Comparison("a", "b", "task.accuracy", (70.0, 71.0, 72.0), (60.0, 61.0, 62.0))
        >>> comparison.against(0.0), comparison.against(10.0), comparison.against(20.0)
        ('better', 'open', 'worse')
        """
        low, high = self.interval
        if not self.can_conclude:
            return "open"
        return "better" if low > amount else "worse" if high < amount else "open"

    def within(self, amount: float) -> Conclusion:
        """Return "better" if the arms are shown to differ by at most `amount`, "worse" if by more, else "open"."""
        low, high = self.interval
        if not self.can_conclude:
            return "open"
        if -amount <= low and high <= amount:
            return "better"
        return "worse" if low > amount or high < -amount else "open"


def pairs(names: Sequence[str], reference: str | None = None) -> list[tuple[str, str]]:
    """Return the pairs of arms (compared recipes) to compare.

    With `reference`, each other arm is compared with this arm; without it, all pairs are compared.

    >>> pairs(["a", "b", "c"], reference="b")
    [('a', 'b'), ('c', 'b')]
    >>> pairs(["a", "b", "c"])
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    """
    if reference is not None:
        return [(name, reference) for name in names if name != reference]
    return [(first, second) for number, first in enumerate(names) for second in names[number + 1 :]]
