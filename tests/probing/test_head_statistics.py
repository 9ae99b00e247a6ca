"""Tests of head statistics, with attention made by hand and with a planted model."""

from __future__ import annotations

import numpy as np
import pytest

from pretune.probing.attention_maps import AttentionMap, attention_maps
from pretune.probing.head_statistics import head_statistics
from tests.support.planted_attention import previous_token_model

SPECIAL = np.array([True, False, False, False, False, True])


def made(*heads: np.ndarray) -> AttentionMap:
    """Return a map of one layer with the given heads, for four words between two special tokens."""
    return AttentionMap("a b c d", ["[CLS]", *"abcd", "[SEP]"], SPECIAL, [np.stack(heads)])


def test_heads_that_attend_to_one_place() -> None:
    size = len(SPECIAL)
    previous, following = np.roll(np.eye(size), -1, axis=1), np.roll(np.eye(size), 1, axis=1)
    to_end = np.zeros((size, size))
    to_end[:, -1] = 1.0
    rows = head_statistics([made(previous, following, np.eye(size), to_end)])
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    expected = {  # previous, next, itself, [SEP]
        "entropy": [0, 0, 0, 0],
        "previous": [1, 0, 0, 0],
        "next": [0, 1, 0, 0],
        "same": [0, 0, 1, 0],
        "special": [0.25, 0.25, 0, 1],  # the word beside [CLS] or [SEP] attends to it
        "distance": [1, 1, 0, None],
    }
    for name, values in expected.items():
        assert [row[name] for row in rows] == values, name


def test_uniform_head_and_means_over_texts() -> None:
    size = len(SPECIAL)
    uniform = made(np.full((size, size), 1 / size))
    (row,) = head_statistics([uniform])
    assert row["entropy"] == pytest.approx(np.log(size), abs=1e-4)
    assert row["special"] == pytest.approx(2 / size, abs=1e-4)
    assert row["distance"] == pytest.approx(np.mean(np.abs(np.subtract.outer(range(4), range(4)))), abs=1e-4)
    (both,) = head_statistics([uniform, made(np.eye(size))])
    assert both["same"] == pytest.approx((1 / size + 1) / 2, abs=1e-4)
    assert both["entropy"] == pytest.approx(np.log(size) / 2, abs=1e-4)


def test_one_word_has_no_neighbors() -> None:
    one = AttentionMap("a", ["[CLS]", "a"], np.array([True, False]), [np.full((1, 2, 2), 0.5)])
    (row,) = head_statistics([one])
    assert row["previous"] is None and row["next"] is None and row["same"] == 0.5


def test_layers_may_have_different_numbers_of_heads() -> None:
    weights = [np.full((heads, 6, 6), 1 / 6) for heads in (1, 3)]
    rows = head_statistics([AttentionMap("", [""] * 6, SPECIAL, weights)])
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 1), (2, 1), (2, 2), (2, 3)]


def test_planted_previous_token_head_is_found() -> None:
    found = attention_maps(previous_token_model(), ["We waited for an hour.", "The train was late."], tokens=True)
    first, second = head_statistics(one for _, one in found)
    assert first["previous"] > 0.95 and first["distance"] == pytest.approx(1.0, abs=0.1) and first["entropy"] < 0.3
    assert second["previous"] < 0.9
