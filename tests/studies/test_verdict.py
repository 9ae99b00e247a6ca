"""Tests of what a study says about results that were made up: a clear win, a tie, too few seeds, failed arms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.studies import made_up_results

CLEAR = {"rtd": [0.710, 0.714, 0.712], "mlm": [0.690, 0.692, 0.691]}
TIE = {"rtd": [0.70, 0.72, 0.68], "mlm": [0.71, 0.69, 0.70]}


def test_a_clear_win_is_told_with_its_interval_and_budget() -> None:
    results = made_up_results(CLEAR)
    assert results.findings("task.accuracy") == [
        "rtd beats mlm by 2.1 ± 0.4 points of task.accuracy at 1e16 FLOPs (71.2 against 69.1, three seeds each)."
    ]
    assert results.headline() == "rtd is the best on task.accuracy, with 71.2 ± 0.2: it beats mlm."
    assert results.best_arm() == "rtd"


def test_a_tie_is_no_difference_that_three_seeds_can_show() -> None:
    results = made_up_results(TIE)
    (finding,) = results.findings("task.accuracy")
    assert "the same mean" in finding
    close = made_up_results({**TIE, "rtd": [0.71, 0.73, 0.69]})
    assert close.findings("task.accuracy")[0].startswith(
        "No difference between rtd and mlm that three seeds can show at 1e16 FLOPs: 1.0 ± "
    )
    assert close.headline().startswith(
        "None of the recipes is shown to be the best on task.accuracy: rtd has the best score"
    )
    assert close.best_arm() is None


def test_two_seeds_show_nothing_however_far_apart_the_arms_are() -> None:
    near, far = (
        made_up_results({"a": [0.70, 0.72], "b": [0.69, 0.70]}),
        made_up_results({"a": [0.90, 0.901], "b": [0.10, 0.101]}),
    )
    assert near.findings("task.accuracy")[0].startswith("No difference between a and b that two seeds can show")
    assert far.findings("task.accuracy")[0].endswith("but two seeds are too few to rely on this.")
    assert "None of the recipes is shown to be the best" in far.headline()


def test_one_seed_and_equal_seeds_are_not_overrated() -> None:
    one = made_up_results({"a": [0.9], "b": [0.1]}).findings("task.accuracy")[0]
    assert one.endswith("which a single seed cannot show to be more than chance.")
    constant = made_up_results({"a": [0.9] * 3, "b": [0.1] * 3}).findings("task.accuracy")[0]
    assert constant.endswith("the scores do not vary with the seed, so that chance is unknown.")


def test_a_failed_arm_is_named_and_does_not_hide_the_others() -> None:
    results = made_up_results({**CLEAR, "lm": [None, None, None]})
    findings = results.findings("task.accuracy")
    assert any("rtd beats mlm" in line for line in findings)
    assert "lm failed, so that rtd and lm cannot be compared on task.accuracy at 1e16 FLOPs." in findings
    assert [one.arm for one in results.failures] == ["lm"] * 3
    row = next(row for row in results.table() if row["arm"] == "lm")
    assert row["failed"] == "3 of 3" and row["task.accuracy (points)"] == "failed"


def test_all_runs_failed_leaves_the_question_open() -> None:
    results = made_up_results({"a": [None], "b": [None]})
    assert results.headline() == "All 2 runs failed, so that the question stays open."


def test_a_partly_failed_arm_counts_its_own_seeds() -> None:
    finding = made_up_results({"a": [0.9, 0.91, 0.92], "b": [0.1, 0.12, None]}).findings("task.accuracy")[0]
    assert "three and two seeds" in finding and "too few" in finding


def test_lower_bits_per_byte_win() -> None:
    results = made_up_results({"a": [1.000, 1.001, 1.002], "b": [1.100, 1.101, 1.102]}, metric="text.bits_per_byte")
    assert results.findings("text.bits_per_byte")[0].startswith(
        "a beats b by 0.100 ± 0.002 of text.bits_per_byte at 1e16 FLOPs (1.001 against 1.101"
    )


EXPECT = {"better": "rtd", "than": "mlm"}


@pytest.mark.parametrize(
    ("scores", "expect", "verdict"),
    [
        (CLEAR, [EXPECT], "holds"),
        (CLEAR, [{**EXPECT, "by": 1.0}], "holds"),
        (CLEAR, [{**EXPECT, "by": 2.1}], "undecided"),
        (CLEAR, [{**EXPECT, "by": 5.0}], "does not hold"),
        (CLEAR, [{"better": "mlm", "than": "rtd"}], "does not hold"),
        (CLEAR, [EXPECT, {**EXPECT, "by": 5.0}], "holds in part"),
        (CLEAR, [EXPECT, {**EXPECT, "by": 2.1}], "holds in part"),
        (CLEAR, [{"equal": ["rtd", "mlm"], "within": 3.0}], "holds"),
        (CLEAR, [{"equal": ["rtd", "mlm"], "within": 0.5}], "does not hold"),
        (TIE, [EXPECT], "undecided"),
        (TIE, [{"equal": ["rtd", "mlm"], "within": 0.5}], "undecided"),
        ({"rtd": [0.9, 0.91], "mlm": [0.1, 0.11]}, [EXPECT], "undecided"),
        ({"rtd": [None] * 3, "mlm": [0.1, 0.11, 0.12]}, [EXPECT], "undecided"),
    ],
)
def test_expectations_are_judged_by_what_is_shown(scores: dict[str, Any], expect: list[Any], verdict: str) -> None:
    results = made_up_results(scores, expect=expect, claim="rtd is better")
    assert results.verdict == verdict
    answer = "is not decided by this study." if verdict == "undecided" else f"{verdict} here"
    assert results.headline().startswith(f"“rtd is better” {answer}")
    if verdict == "holds in part":
        other = "1 does not hold" if expect[1]["by"] == 5.0 else "1 is undecided"
        assert f"holds in part here (of 2 expectations, 1 holds and {other})." in results.headline()


def test_the_headline_names_all_arms_with_the_best_mean_and_those_that_failed() -> None:
    scores = {"a": [0.7, 0.8, 0.9], "b": [0.9, 0.8, 0.7], "c": [0.1, 0.2, 0.3], "d": [None] * 3}
    headline = made_up_results(scores, expect=[{"better": "a", "than": "b"}], claim="a is better").headline()
    assert headline == (
        "“a is better” is not decided by this study. a and b have the best mean of task.accuracy, 80.0 ± 10.0. d failed."
    )


def test_unequal_costs_are_reported() -> None:
    results = made_up_results(CLEAR)
    assert results.unequal_costs() == ""
    for outcome in results.outcomes:
        if outcome.arm == "mlm":
            outcome.cost["flops"] = 1.05e16
    assert results.unequal_costs().startswith(
        "the arms spent amounts that differ by 4.8 %, more than planned: rtd 1e16 FLOPs, mlm"
    )
