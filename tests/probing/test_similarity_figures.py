"""Tests of the figures of layers and projections: every kind of values can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.probing.similarity_figures import (
    CATEGORIES,
    color_categories,
    color_scale,
    draw_layer_values,
    draw_projection,
    draw_similarity,
)
from pretune.runtime.figures import figure_fonts, save_figure


@pytest.mark.parametrize(
    "colors",
    [
        None,
        ["a", "b", None, ""] * 5,
        [str(number) for number in range(20)],
        [f"class {number}" for number in range(20)],
    ],
)
def test_points_are_drawn(colors: Any, tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    with figure_fonts(["$x$"]):
        figure = draw_projection(points, colors, "$x$", ("one", "two"))
        files = save_figure(figure, tmp_path, "points")
    assert [file.name for file in files] == ["points.svg", "points.png"] and all(file.stat().st_size for file in files)
    drawn = sum(len(part.get_offsets()) for part in figure.axes[0].collections)
    assert drawn == 20


def test_many_categories_share_a_color_and_many_numbers_a_scale() -> None:
    names = color_categories([f"c{number}" for number in range(30)] + ["c1"] * 5)
    assert len(set(names)) == CATEGORIES and "other" in names and names.count("c1") == 6
    scale = color_scale([*map(str, range(20)), ""])
    assert scale is not None and np.isnan(scale[-1]) and scale[3] == 3
    assert color_scale([0, 1] * 20) is None


def test_matrices_and_lines_with_undefined_values_are_drawn(tmp_path: Path) -> None:
    matrix = np.array([[1.0, np.nan, -0.01], [0.5, 1.0, 0.2]])
    with figure_fonts():
        figure = draw_similarity(matrix, "CKA", "first", "second")
        save_figure(figure, tmp_path, "matrix")
        assert len(figure.axes[0].texts) == 5 and figure.axes[1].get_ylabel() == "CKA"
        save_figure(draw_similarity(np.full((2, 2), np.nan), "CKA", "a", "b"), tmp_path, "nothing")
        save_figure(draw_layer_values({"a": {"x": [0.1, None, 0.3]}, "b": {"x": [0.5]}}, "cosine"), tmp_path, "lines")
