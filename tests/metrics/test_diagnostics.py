"""Tests of metrics by phenomenon, parity, and questions with several answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.metrics.diagnostics import by_phenomenon, gender_parity, matthews, preference_rate
from pretune.metrics.multirc import multirc_metrics


def test_every_phenomenon_has_a_row() -> None:
    categories = [
        {"Logic": ["Negation", "Intervals"]},
        {"Logic": ["Negation"], "Knowledge": ["World"]},
        {"Knowledge": ["World"]},
        {},
    ]
    table = by_phenomenon(categories, ["a", "b", "a", "b"], ["a", "b", "b", "b"])
    assert [(row["category"], row["phenomenon"], row["rows"]) for row in table] == [
        ("Knowledge", "all", 2), ("Knowledge", "World", 2),
        ("Logic", "all", 2), ("Logic", "Intervals", 1), ("Logic", "Negation", 2),
    ]  # fmt: skip
    assert table[2]["matthews"] == 1.0 and table[0]["accuracy"] == 0.5 and table[3]["matthews"] == 0.0


def test_matthews_of_three_classes_is_gorodkins_correlation() -> None:
    # From the counts [[2, 1, 0], [0, 1, 1], [1, 0, 2]]: (cov xy) / √(cov xx · cov yy)
    expected, given_ = list("aaabbccc"), list("aabbcacc")
    right, total, there, predicted = 5, 8, (3, 2, 3), (3, 2, 3)
    product = sum(a * b for a, b in zip(there, predicted, strict=True))
    square = total**2 - sum(a * a for a in there)
    assert matthews(expected, given_) == pytest.approx((right * total - product) / square)


def test_parity_compares_predictions_not_correctness() -> None:
    assert gender_parity([0, 0, 1, 1, 2, 2], ["x", "x", "y", "y", "x", "y"]) == pytest.approx(2 / 3)


@pytest.mark.not_fast
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_multirc_metrics_match_their_definitions(rows: list[tuple[int, bool, bool]]) -> None:
    questions, expected, given_ = (list(column) for column in zip(*rows, strict=True))
    found = multirc_metrics(questions, expected, given_)
    both = sum(a and b for a, b in zip(expected, given_, strict=True))
    assert found["f1a"] == pytest.approx(2 * both / max(1, sum(expected) + sum(given_)))
    whole = [all(a == b for q, a, b in rows if q == question) for question in set(questions)]
    assert found["exact_questions"] == pytest.approx(sum(whole) / len(whole))


def test_ties_count_half() -> None:
    assert preference_rate([1, 0], [1, -1]) == 0.75
