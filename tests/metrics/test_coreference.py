"""Tests of the metrics of coreference on hand-made entities, with the values of the papers and of the scorer's definition."""

from __future__ import annotations

import pytest

from pretune.metrics.coreference import coreference_metrics, link_mentions

GOLD: list[set[int]] = [{1, 2, 3, 4, 5}, {6, 7}, {8, 9, 10, 11, 12}]  # Bagga and Baldwin, 1998
MERGED_SMALL: list[set[int]] = [{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11, 12}]
MERGED_LARGE: list[set[int]] = [{1, 2, 3, 4, 5, 8, 9, 10, 11, 12}, {6, 7}]


def f1(recall: float, precision: float) -> float:
    return 2 * recall * precision / (recall + precision)


@pytest.mark.parametrize(("merged", "precision"), [(MERGED_SMALL, 16 / 21), (MERGED_LARGE, 7 / 12)])
def test_b_cubed_prefers_small_errors_and_muc_does_not(merged: list[set[int]], precision: float) -> None:
    found = coreference_metrics([GOLD], [merged]).compute()
    assert found["muc_f1"] == pytest.approx(f1(1.0, 0.9))
    assert found["b_cubed_f1"] == pytest.approx(f1(1.0, precision))


def test_ceaf_aligns_each_entity_with_one() -> None:
    found = coreference_metrics([GOLD], [MERGED_SMALL]).compute()
    similarity = 1 + 2 * 5 / 12  # the merged entity is aligned with the larger one
    assert found["ceaf_f1"] == pytest.approx(f1(similarity / 3, similarity / 2))
    scores = [found[name] for name in ("muc_f1", "b_cubed_f1", "ceaf_f1")]
    assert found["coreference_f1"] == pytest.approx(sum(scores) / 3)


def test_equal_entities_are_perfect_in_any_order_and_no_entity_is_zero() -> None:
    assert set(coreference_metrics([GOLD], [GOLD[::-1]]).compute().values()) == {1.0}
    assert set(coreference_metrics([GOLD], [[]]).compute().values()) == {0.0}
    assert set(coreference_metrics([[]], [[]]).compute().values()) == {0.0}


def test_entities_of_one_mention_do_not_count() -> None:
    alone = [*GOLD, {20}]
    assert set(coreference_metrics([GOLD], [alone]).compute().values()) == {1.0}
    assert set(coreference_metrics([alone], [GOLD]).compute().values()) == {1.0}


def test_mentions_of_different_documents_are_apart_and_sums_are_over_documents() -> None:
    both = coreference_metrics([[{1, 2}], [{1, 2, 3}]], [[{1, 2}], [{1, 2}]]).compute()
    assert both["muc_f1"] == pytest.approx(f1(2 / 3, 1.0)) and both["b_cubed_f1"] == pytest.approx(
        f1((2 + 4 / 3) / 5, 1.0)
    )


def test_links_are_followed_transitively() -> None:
    assert link_mentions("abcd", {"b": "a", "d": "b"}) == [{"a", "b", "d"}, {"c"}]
