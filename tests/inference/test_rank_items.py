"""Tests of the recommendation of items; the ranks of last items are tested with the objective item."""

from __future__ import annotations

import numpy as np
import pytest

from pretune import PretuneError
from pretune.inference.rank_items import (
    encode_histories,
    is_item,
    next_item_scores,
    rank_targets,
    recommend_items,
    report_unknown,
)
from tests.support.user_histories import item_model

BIAS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}


def test_best_items_that_the_user_has_not_seen_are_recommended() -> None:
    model = item_model("a b c d", BIAS)
    histories = encode_histories(model, [["a", "c"], ["d"], ["a", "new"]])
    found = recommend_items(model, histories, top_k=2)
    assert [[best.item for best in items] for items in found] == [["b", "d"], ["a", "b"], ["b", "c"]]
    again = recommend_items(model, histories, top_k=9, include_seen=True)
    assert [[best.item for best in items] for items in again] == [["a", "b", "c", "d"]] * 3
    for items in again:  # the probabilities are those among all items
        assert sum(best.probability for best in items) == pytest.approx(1)
    assert found[0][0].probability == pytest.approx(np.exp(3) / np.exp([4, 3, 2, 1]).sum(), rel=1e-4)


def test_a_user_who_has_seen_everything_gets_no_recommendation() -> None:
    model = item_model("a b c d", BIAS)
    assert recommend_items(model, encode_histories(model, [["a", "b", "c", "d"], ["a"]]), top_k=1)[0] == []


def test_scores_do_not_depend_on_the_batch_and_use_the_newest_items() -> None:
    model = item_model("a b c d e")
    histories = encode_histories(model, [["a", "b", "c"], ["d"], ["e", "a", "b", "c"], ["c", "b"]])
    alone = [next(iter(next_item_scores(model, [history])))[1][0] for history in histories]
    together = np.empty((len(histories), len(alone[0])))
    for chosen, scores in next_item_scores(model, histories):
        together[chosen] = scores
    items = is_item(model)
    assert items.sum() == 5 and np.isneginf(together[:, ~items]).all()
    np.testing.assert_allclose(together[:, items], np.stack(alone)[:, items], atol=1e-5)
    _, short = next(iter(next_item_scores(model, histories[:3:2], length=6)))  # three items, [MASK], two special tokens
    np.testing.assert_allclose(short[0][items], short[1][items], atol=1e-5)
    assert np.abs(together[0, items] - together[2, items]).max() > 1e-4


def test_ranks_are_those_among_candidates() -> None:
    scores = np.array([[1.0, 3.0, 2.0, -np.inf], [0.0, 0.0, 0.0, -np.inf], [9.0, 1.0, 1.0, 1.0]])
    assert rank_targets(scores, np.array([0, 1, 0])).tolist() == [3, 2, 1]
    assert np.isinf(rank_targets(scores[:1], np.array([3]))).all()


def test_histories_that_do_not_fit_the_model_are_rejected() -> None:
    model = item_model("a b c d")
    with pytest.raises(PretuneError, match="the model knows none of the items in these histories; give"):
        report_unknown(model, encode_histories(model, [["x", "y"]]))
    with pytest.raises(PretuneError, match="--top-k 0: at least one item must be recommended"):
        recommend_items(model, encode_histories(model, [["a"]]), top_k=0)
    with pytest.raises(PretuneError, match="sequences of 3 tokens leave no room for an item and a"):
        recommend_items(model, encode_histories(model, [["a"]]), length=3)
