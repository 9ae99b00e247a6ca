"""Tests of the comparison of two arms: Welch's test against scipy, and what may be concluded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pretune.studies.comparisons import Comparison

SCORES = st.lists(st.floats(0, 100).map(lambda x: round(x, 2)), min_size=2, max_size=6)


@given(SCORES, SCORES)
def test_interval_and_p_value_are_those_of_scipy(first: list[float], second: list[float]) -> None:
    one = Comparison("a", "b", "m", tuple(first), tuple(second))
    if not one.standard_error > 1e-6:
        return
    peer = stats.ttest_ind(first, second, equal_var=False)
    low, high = peer.confidence_interval(0.95)
    assert one.interval == pytest.approx((low, high), rel=1e-6, abs=1e-6)
    assert one.p == pytest.approx(peer.pvalue, rel=1e-6, abs=1e-9)
    assert (one.against(0.0) != "open") == (one.seeds >= 3 and not low <= 0 <= high)


@given(SCORES, SCORES)
def test_swapping_the_arms_swaps_the_conclusion(first: list[float], second: list[float]) -> None:
    one, other = (
        Comparison("a", "b", "m", tuple(first), tuple(second)),
        Comparison("b", "a", "m", tuple(second), tuple(first)),
    )
    swapped = {"better": "worse", "worse": "better", "open": "open"}
    assert other.conclusion == swapped[one.conclusion]


def test_more_comparisons_need_clearer_differences() -> None:
    first, second = (70.0, 71.0, 72.0), (67.0, 68.0, 69.0)
    alone, many = (Comparison("a", "b", "m", first, second, comparisons=count) for count in (1, 10))
    assert many.half_width > alone.half_width
    assert (alone.conclusion, many.conclusion) == ("better", "open")


def test_lower_is_better_turns_the_difference() -> None:
    one = Comparison("a", "b", "text.bits_per_byte", (1.0, 1.01, 1.02), (2.0, 2.01, 2.02), lower_is_better=True)
    assert one.difference == pytest.approx(1.0) and one.conclusion == "better"


def test_two_seeds_or_no_spread_or_no_scores_leave_everything_open() -> None:
    for first, second in [
        ((90.0, 90.1), (10.0, 10.1)),
        ((90.0,), (10.0,)),
        ((90.0,) * 3, (10.0,) * 3),
        ((), (10.0, 11.0, 12.0)),
    ]:
        one = Comparison("a", "b", "m", first, second)
        assert (one.conclusion, one.within(100.0)) == ("open", "open")
    assert math.isnan(Comparison("a", "b", "m", (), (1.0,)).difference)


def test_equality_needs_the_whole_interval() -> None:
    close = Comparison("a", "b", "m", (70.0, 70.2, 70.1), (70.1, 70.0, 70.2))
    assert (close.within(1.0), close.within(0.1), close.conclusion) == ("better", "open", "open")
    far = Comparison("a", "b", "m", (80.0, 80.2, 80.1), (70.1, 70.0, 70.2))
    assert far.within(1.0) == "worse"
