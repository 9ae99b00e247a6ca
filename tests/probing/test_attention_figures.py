"""Tests of the figures of attention: odd words, one head, and layers with different numbers of heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pretune import PretuneError
from pretune.probing.attention_figures import FAINTEST, draw_head, draw_head_grid, draw_head_values
from pretune.probing.attention_maps import AttentionMap
from pretune.runtime.arrays import Array
from pretune.runtime.figures import figure_fonts, save_figure

UNITS = ["[CLS]", "$x$", "정원", "дом", "\n", "[SEP]"]


def made(heads: tuple[int, ...] = (1, 3)) -> AttentionMap:
    """Return a map with random weights and the given numbers of heads per layer."""
    draws = np.random.default_rng(0)
    special = np.array([True, False, False, False, False, True])
    weights = [draws.dirichlet(np.ones(6), size=(count, 6)) for count in heads]
    return AttentionMap("$a$ text", UNITS, special, weights)


@pytest.mark.not_fast
def test_figures_of_odd_words_are_saved(tmp_path: Path) -> None:
    one = made()
    with figure_fonts(UNITS):
        grid = draw_head_grid(one)
        save_figure(grid, tmp_path, "grid")
        save_figure(draw_head(one, 2, 3), tmp_path, "head")
    assert len(list(tmp_path.iterdir())) == 4
    mosaic = grid.axes[0].images[0].get_array()
    assert mosaic.count() == 4 * 36  # four heads; the missing ones of layer 1 are blank
    with pytest.raises(PretuneError, match="head 2 does not exist"):
        draw_head(one, 1, 2)


def test_an_arc_is_drawn_for_each_weight_between_words() -> None:
    one = made((1,))
    weights: Array = np.eye(6)
    weights[4] = [0.6, 0, 0.4 - FAINTEST / 2, 0, 0, FAINTEST / 2]
    weights[1] = [0, 0, 0, 1, 0, 0]
    with figure_fonts():
        axes = draw_head(AttentionMap(one.text, UNITS, one.special, [weights[None]]), 1, 1).axes
    arcs = next(part for part in axes if part.patches)
    assert len(arcs.patches) == 3 and len(arcs.texts) == 6


def test_values_of_heads_may_be_missing_or_all_zero(tmp_path: Path) -> None:
    rows = [{"layer": layer, "head": head, "a": None, "b": 0.0} for layer in (1, 2) for head in (1, 2)]
    with figure_fonts():
        for diverging in (False, True):
            figure = draw_head_values(rows[:-1], {"a": "nats", "b": "share"}, diverging=diverging)
            save_figure(figure, tmp_path, "values")
            assert [part.get_ylabel() for part in figure.axes if part.get_ylabel() in ("nats", "share")] == [
                "nats",
                "share",
            ]
