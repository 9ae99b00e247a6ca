"""Tests of the evaluation of recommendations by leave-one-out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.evaluation.leave_one_out import RecommendationBaselines, leave_one_out, sample_negatives
from pretune.inference.rank_items import encode_histories, is_item
from pretune.runtime.randomness import EpochRandom
from tests.support.user_histories import item_model

BIAS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}


def rows(table: list[dict[str, Any]], column: str) -> dict[tuple[str, str], float]:
    return {(row["method"], row["candidates"].split()[0]): row[column] for row in table}


def test_worked_example() -> None:
    """The model ranks a, b, c, d; the last items are d after a and b, and a after c."""
    model = item_model("a b c d", BIAS)
    histories = encode_histories(model, [["a", "b", "d"], ["c", "a"], ["b"]])
    table, facts = leave_one_out(model, histories, top_k=1, num_negatives=1)
    assert facts == {"users": 2, "skipped_users": 1, "unknown_targets": 0, "seen_targets": 0}
    assert rows(table, "mrr")["model", "all"] == pytest.approx((1 / 2 + 1) / 2)  # d after c, which is unseen; a
    assert rows(table, "hit_rate@1")["model", "all"] == 0.5
    with_seen, _ = leave_one_out(model, histories, top_k=1, include_seen=True)
    assert rows(with_seen, "mrr")["model", "all"] == pytest.approx((1 / 4 + 1) / 2)


def test_last_items_that_are_unknown_or_seen() -> None:
    model = item_model("a b c d", BIAS)
    table, facts = leave_one_out(model, encode_histories(model, [["b", "new"], ["a", "b", "a"]]))
    assert facts["unknown_targets"] == facts["seen_targets"] == 1
    for method in ("model", "popularity", "co-occurrence"):  # an unknown item is a miss of every method
        assert rows(table, "hit_rate@10")[method, "all"] == 0.5
    assert rows(table, "mrr")["model", "all"] == 0.5


def test_baselines_do_not_see_the_held_out_items() -> None:
    """d is everybody's last item, but nobody's earlier one: neither baseline can know that it comes next."""
    model = item_model("a b c d")
    histories = encode_histories(model, [["a", "b", "d"], ["b", "a", "d"], ["c", "b", "d"]])
    baselines = RecommendationBaselines([history[:-1] for history in histories], is_item(model))
    last = int(histories[0][-1])
    assert baselines.popularity[last] == 0
    assert (baselines.by_co_occurrence(np.arange(3))[:, last] == 0).all()
    table, _ = leave_one_out(model, histories, top_k=1)
    assert rows(table, "hit_rate@1")["popularity", "all"] == rows(table, "hit_rate@1")["co-occurrence", "all"] == 0


def test_co_occurrence_counts_histories_and_breaks_ties_by_popularity() -> None:
    model = item_model("a b c d")
    histories = encode_histories(model, [["a", "b"], ["b", "b", "a"], ["c", "a"], ["c", "d"], ["c"]])
    baselines = RecommendationBaselines(histories, is_item(model))
    a, b, c, d = (int(model.require_tokenizer().encode(item)[0]) for item in "abcd")
    scores = baselines.by_co_occurrence(np.array([0]))[0]  # the last item is b
    assert scores[a] == pytest.approx(2 + 3 / 4) and scores[b] < 1 and scores[d] < scores[c] < 1
    assert baselines.popularity[[a, b, c, d]].tolist() == [3, 2, 3, 1]


@settings(max_examples=30)
@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 6))
def test_negatives_are_unseen_and_do_not_depend_on_the_batch(seed: int, count: int, users: int) -> None:
    chance = np.random.default_rng(seed)
    popularity, excluded = chance.integers(0, 4, 12).astype(float), chance.random((users, 12)) < 0.3
    draws, numbers = EpochRandom(seed), np.arange(users)
    found = sample_negatives(popularity, excluded, count, draws, numbers)
    assert not (found & excluded).any() and not found[:, popularity == 0].any()
    left = (~excluded & (popularity > 0)).sum(1)
    assert (found.sum(1) == np.minimum(count, left)).all()
    alone = [sample_negatives(popularity, excluded[i : i + 1], count, draws, numbers[i : i + 1])[0] for i in numbers]
    assert (np.stack(alone) == found).all()


def test_negatives_follow_popularity() -> None:
    popularity = np.array([1.0, 2.0, 5.0])
    found = sample_negatives(popularity, np.zeros((4000, 3), dtype=bool), 1, EpochRandom(0), np.arange(4000))
    np.testing.assert_allclose(found.mean(0), popularity / 8, atol=0.04)


def test_bad_settings_are_rejected() -> None:
    model = item_model("a b c d")
    with pytest.raises(PretuneError, match="no history has two or more items, but the last item of each is held out"):
        leave_one_out(model, encode_histories(model, [["a"], ["b"]]))
    with pytest.raises(PretuneError, match="--num-negatives 0: choose a number above 0"):
        leave_one_out(model, encode_histories(model, [["a", "b"]]), num_negatives=0)
