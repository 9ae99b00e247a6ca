"""Tests of expected layers and centers of gravity (Tenney et al., 2019)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.probing.probes.layer_analysis import center_of_gravity, differential_scores, expected_layer


def test_layers_keep_their_numbers() -> None:
    assert center_of_gravity([0, 6, 12], [0.25, 0.5, 0.25]) == 6
    assert expected_layer([0, 6, 12], [0.5, 0.75, 1.0]) == pytest.approx(9)


def test_losses_do_not_count_and_no_gain_has_no_expected_layer() -> None:
    assert differential_scores([0.5, 1.0, 0.75]) == [0.5, -0.25]
    assert expected_layer([0, 1, 2], [0.5, 1.0, 0.75]) == pytest.approx(1.0)
    assert expected_layer([0, 1], [0.5, 0.5]) is None and expected_layer([0], [0.5]) is None
    assert expected_layer([0, 1], [0.5, 0.52], least_gain=0.05) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_expected_layer_exists_in_the_network(cumulative: list[float]) -> None:
    found = expected_layer(range(len(cumulative)), cumulative)
    assert found is None or 1 - 1e-9 <= found <= len(cumulative) - 1 + 1e-9
