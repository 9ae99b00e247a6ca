"""Say in plain language what the results of a study show, and what they cannot show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from pretune.studies.comparisons import LEAST_SEEDS, LEVEL, Comparison
from pretune.studies.study_file import Expectation

Verdict = Literal["holds", "holds in part", "does not hold", "undecided"]
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}


@dataclass(frozen=True)
class JudgedExpectation:
    """An expectation of a study, with the comparison of arms (compared recipes) that decides it."""

    expectation: Expectation
    comparison: Comparison

    @property
    def verdict(self) -> Verdict:
        """The verdict on the expectation: whether the comparison confirms it, refutes it, or leaves it undecided."""
        amount = self.expectation.amount
        found = self.comparison.within(amount) if self.expectation.equal else self.comparison.against(amount)
        verdicts: dict[str, Verdict] = {"better": "holds", "worse": "does not hold", "open": "undecided"}
        return verdicts[found]

    def __str__(self) -> str:
        return f"“{self.expectation}”: {self.verdict}. {sentence(self.comparison)}"


def overall_verdict(judged: Sequence[JudgedExpectation]) -> Verdict:
    """Return the verdict on all expectations of a study together.

    If all expectations hold, it is "holds"; if some hold, "holds in part"; if none holds and at least one is refuted,
    "does not hold"; otherwise "undecided".
    """
    found = [one.verdict for one in judged]
    if found and all(verdict == "holds" for verdict in found):
        return "holds"
    if "holds" in found:
        return "holds in part"
    return "does not hold" if "does not hold" in found else "undecided"


def sentence(comparison: Comparison, budget: str = "") -> str:
    """Return one sentence about the difference between two compared recipes.

    It claims no more than the seeds show. `budget` is text such as "1e16 FLOPs", which the sentence mentions.

    >>> sentence(Comparison("rtd", "mlm", "glue.mean", (71.0, 71.4, 71.2), (69.0, 69.2, 69.1), unit="points"), "1e16 FLOPs")
    'rtd beats mlm by 2.1 ± 0.4 points of glue.mean at 1e16 FLOPs (71.2 against 69.1, three seeds each).'
    """
    one = comparison
    at = f" at {budget}" if budget else ""
    if missing := [
        name for name, scores in ((one.first, one.first_scores), (one.second, one.second_scores)) if not scores
    ]:
        why = f"{' and '.join(missing)} {one.unscored}"
        return f"{why}, so that {one.first} and {one.second} cannot be compared on {one.metric}{at}."
    unit = f" {one.unit}" if one.unit else ""
    seeds = seed_count(one)
    ahead, behind = (one.first, one.second) if one.difference >= 0 else (one.second, one.first)
    means = {one.first: mean(one.first_scores), one.second: mean(one.second_scores)}
    usual = decimals_of([*one.first_scores, *one.second_scores])
    scores = f"({number(means[ahead], usual)} against {number(means[behind], usual)}, {seeds})"
    digits = 3 if min(abs(one.difference), one.half_width) < 0.1 else usual  # so that neither is rounded to 0
    size = f"{number(abs(one.difference), digits)}{unit} of {one.metric}"
    interval = f"{number(abs(one.difference), digits)} ± {number(one.half_width, digits)}{unit} of {one.metric}"
    if one.conclusion != "open":
        return f"{ahead} beats {behind} by {interval}{at} {scores}."
    if one.difference == 0:
        return f"{one.first} and {one.second} have the same mean of {one.metric}{at} {scores}."
    if one.seeds == 1:
        return (
            f"{ahead} is {size} ahead of {behind}{at} {scores}, which a single seed cannot show to be more than chance."
        )
    if not one.has_spread:
        return f"{ahead} is {size} ahead of {behind}{at} {scores}, but the scores do not vary with the seed, so that chance is unknown."
    if one.seeds < LEAST_SEEDS:
        low, high = one.interval
        if low > 0 or high < 0:
            return f"{ahead} is {interval} ahead of {behind}{at} {scores}, but two seeds are too few to rely on this."
        return f"No difference between {ahead} and {behind} that two seeds can show{at}: {interval} {scores}."
    count = NUMBERS.get(one.seeds, str(one.seeds))
    return f"No difference between {ahead} and {behind} that {count} seeds can show{at}: {interval} {scores}."


def seed_count(comparison: Comparison) -> str:
    """Return the number of seeds of the arms (compared recipes) in a comparison, as text."""
    counts = [len(comparison.first_scores), len(comparison.second_scores)]
    words = [NUMBERS.get(count, str(count)) for count in counts]
    if counts[0] == counts[1]:
        return f"{words[0]} seed{'s' if counts[0] > 1 else ''} each"
    return f"{words[0]} and {words[1]} seeds"


def number(value: float, decimals: int = 1) -> str:
    """Return a number as text for a sentence, with the given number of decimals.

    >>> number(71.24), number(0.1234, 3), number(float("nan"))
    ('71.2', '0.123', 'unknown')
    """
    return "unknown" if math.isnan(value) else f"{value:.{decimals}f}"


def decimals_of(values: Sequence[float]) -> int:
    """Return the number of decimals to show values with: 1 if any absolute value is 10 or more, as in percent, else 3.

    >>> decimals_of([71.2, 0.5]), decimals_of([0.9, 1.1])
    (1, 3)
    """
    return 1 if any(abs(value) >= 10 for value in values) else 3


def mean_and_spread(scores: Sequence[float]) -> str:
    """Return the mean of scores as text, followed by their standard deviation if there are several scores.

    >>> mean_and_spread([71.0, 72.0]), mean_and_spread([1.5]), mean_and_spread([])
    ('71.5 ± 0.7', '1.500', 'failed')
    """
    if not scores:
        return "failed"
    digits = decimals_of(scores)
    return (
        f"{number(mean(scores), digits)} ± {number(stdev(scores), digits)}"
        if len(scores) > 1
        else number(scores[0], digits)
    )


def notes(seeds: int, comparisons: int, examples: int | None) -> list[str]:
    """Return notes that help to interpret the numbers of a study, given how many seeds and comparisons it has.

    `examples` is the number of dev examples, if it is the same in all runs.
    """
    found = [
        f"± in a sentence is half of a {100 * LEVEL:.0f} % confidence interval of the difference over seeds (Welch's t-test"
        + (f", widened for {comparisons} comparisons)." if comparisons > 1 else ").")
        + " ± in a table is the standard deviation over seeds."
    ]
    if seeds < LEAST_SEEDS:
        found.append(
            f"With {NUMBERS.get(seeds, str(seeds))} seed{'s' if seeds > 1 else ''}, no difference counts as shown; repeat the study with at "
            f"least {NUMBERS[LEAST_SEEDS]} (finished runs are kept)."
        )
    if examples is not None:
        error = 100 * math.sqrt(0.25 / examples)
        found.append(
            f"All arms are scored on the same {examples:,} examples. Intervals do not cover the choice of these examples: an accuracy on "
            f"{examples:,} examples has a standard error of up to {error:.1f} points."
        )
    return found
