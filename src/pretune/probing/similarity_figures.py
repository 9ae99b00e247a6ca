"""Figures of layers and texts: similarity matrices, values per layer, and scatter plots of projected vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.figures import SPINE, draw_heat_map, plain_label

CATEGORIES = 12  # colors for categories, at most; the rarest share the last one
PALETTE = (
    "#2f6fde", "#d9822b", "#3a9a6b", "#c0392b", "#8a5ad0", "#7a5a3c", "#d667a8", "#5f6b7a", "#a8a02a", "#22a2b8",
    "#123a7a", "#b9bec9",
)  # fmt: skip
OTHER, MISSING = "other", "(missing)"


def draw_similarity(matrix: Array, measure: str, first: str, second: str) -> Any:
    """Draw the similarity matrix of the layers of two models, and return the figure.

    `measure` is the name of the similarity, `first` and `second` are the names of the models, shown on the axes.
    """
    from matplotlib.figure import Figure

    rows, columns = matrix.shape
    side = min(0.42, 7 / max(rows, columns))
    figure = Figure(figsize=(max(2.2, side * columns) + 2.0, max(2.2, side * rows) + 1.1), layout="constrained")
    axes = figure.subplots()
    lowest = min(0.0, float(np.nanmin(matrix))) if np.isfinite(matrix).any() else 0.0
    numbers = [list(map(str, range(count))) for count in (rows, columns)]
    image = draw_heat_map(
        axes,
        matrix,
        rows=numbers[0],
        columns=numbers[1],
        cmap="magma",
        vmin=lowest,
        vmax=1.0,
        origin="lower",
        aspect="equal",
    )
    if max(rows, columns) <= 14:
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                color = "white" if value < 0.65 else "#1d2330"
                axes.text(column, row, f"{value:.2f}"[-3 - (value >= 0.995 or value < 0) :], ha="center", va="center",
                          color=color, fontsize=18 * side)  # fmt: skip
    axes.set_xlabel(f"layer of {plain_label(second, 40)}")
    axes.set_ylabel(f"layer of {plain_label(first, 40)}")
    bar = figure.colorbar(image, ax=axes, label=measure, shrink=0.9, pad=0.02)
    bar.outline.set_edgecolor(SPINE)
    return figure


def draw_layer_values(models: Mapping[str, Mapping[str, Sequence[float | None]]], label: str) -> Any:
    """Draw line charts of values by layer, with a color per value and a line style per model; return the figure.

    Parameters
    ----------
    models
        For each model, the values by name, one per layer; None leaves a gap.
    label
        The label of the vertical axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for model, style in zip(models, ("-", "--", ":"), strict=False):
        for number, (name, values) in enumerate(models[model].items()):
            points = [float("nan") if value is None else value for value in values]
            title = f"{name}, {model}" if len(models) > 1 else name
            axes.plot(
                points,
                style,
                marker="o",
                markersize=4,
                linewidth=2,
                color=PALETTE[number],
                label=plain_label(title, 70),
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (0: embeddings)")
    axes.set_ylabel(label)
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
    axes.grid(axis="y", color="#e4e6ec")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(models), frameon=False, fontsize="small", handlelength=3.0)
    return figure


def draw_projection(points: Array, colors: Sequence[Any] | None, color_name: str, axis_labels: tuple[str, str]) -> Any:
    """Draw a scatter plot of points, (n, 2), colored by category or by a color scale for numbers; return the figure.

    Parameters
    ----------
    points
        The coordinates, (n, 2).
    colors
        One value per point, which determines its color; None to draw all points in the same color.
    color_name
        The title of the legend or color bar.
    axis_labels
        The labels of the two axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    axes: Any = figure.subplots()
    size = float(np.clip(9000 / max(1, len(points)), 10, 44))
    style: dict[str, Any] = {"s": size, "linewidths": 0.4, "edgecolors": "white", "alpha": 0.85}
    if colors is None:
        axes.scatter(*points.T, color=PALETTE[0], **style)
    elif (numbers := color_scale(colors)) is not None:
        known = np.isfinite(numbers)
        axes.scatter(*points[~known].T, color="#c9cdd6", **style)
        image = axes.scatter(*points[known].T, c=numbers[known], cmap="viridis", **style)
        figure.colorbar(image, ax=axes, label=plain_label(color_name, 40), pad=0.02).outline.set_edgecolor(SPINE)
    else:
        names = color_categories(colors)
        order = list(
            dict.fromkeys(sorted(names, key=lambda name: (name in (OTHER, MISSING), -names.count(name), name)))
        )
        for number, name in enumerate(order):
            own = points[[place for place, value in enumerate(names) if value == name]]
            color = PALETTE[-1] if name in (OTHER, MISSING) else PALETTE[number]
            axes.scatter(*own.T, color=color, label=plain_label(name, 24), **style)
        legend: Any = axes.legend(
            title=plain_label(color_name, 24),
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            markerscale=1.3,
        )
        for handle in legend.legend_handles:
            handle.set_alpha(1.0)
    axes.set_xlabel(axis_labels[0])
    axes.set_ylabel(axis_labels[1])
    axes.tick_params(length=0, labelsize="small", colors="#8a90a0")
    axes.spines[:].set_color(SPINE)
    return figure


def color_scale(values: Sequence[Any]) -> Array | None:
    """Return values as floats (NaN if missing) for a color scale; None if they are categories.

    Values are categories if one of them is not a number, or if only a few different numbers occur.

    >>> color_scale(["a", "1"]) is None, color_scale([1, 2, 1]) is None
    (True, True)
    """
    try:
        numbers = np.array([float("nan") if value in (None, "") else float(value) for value in values])
    except (TypeError, ValueError):
        return None
    return numbers if len(set(numbers[np.isfinite(numbers)].tolist())) > CATEGORIES else None


def color_categories(values: Sequence[Any]) -> list[str]:
    """Return the name of each value's category for a legend; rare values get the category "other".

    >>> color_categories(["x", None, "y"])
    ['x', '(missing)', 'y']
    """
    names = [MISSING if value in (None, "") else str(value) for value in values]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    if len(counts) <= CATEGORIES:
        return names
    kept = set(sorted(counts, key=lambda name: (-counts[name], name))[: CATEGORIES - 1])
    return [name if name in kept else OTHER for name in names]
