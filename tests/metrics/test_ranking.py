from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.metrics.ranking import query_metrics

rows_strategy = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-5, 5)), min_size=1, max_size=30)


@pytest.mark.not_fast
@settings(max_examples=60)
@given(rows_strategy)
def test_scores_are_between_0_and_1_and_the_ideal_order_has_1(rows: list[tuple[int, int, int]]) -> None:
    groups, relevances, scores = (np.array([row[i] for row in rows]) for i in range(3))
    found = query_metrics(groups, relevances, scores.astype(float)).compute()
    assert all(0 <= value <= 1.0000001 for value in found.values())
    best = query_metrics(groups, relevances, relevances.astype(float)).compute()
    assert set(np.round(list(best.values()), 6)) == ({1.0} if relevances.any() else {0.0})
    moved = query_metrics(
        groups, relevances, 2.0 * scores + groups
    ).compute()  # scores are compared only within a query
    assert moved == pytest.approx(found)


def test_ranking_metrics_match_worked_examples() -> None:
    groups, relevances = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 0, 1])
    found = query_metrics(groups, relevances, np.array([3.0, 2.0, 1.0, 0.0, 1.0])).compute()
    assert found["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    gain = (1 / np.log2(3) + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    assert found["ndcg@10"] == pytest.approx((gain + 1) / 2)
    assert query_metrics(groups, relevances, np.zeros(5)).compute()["mrr"] == pytest.approx(1 / 2)  # all tied
