"""Figures of attention: all heads as small heat maps, one head with its words and arcs, and values per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pretune.probing.attention_maps import AttentionMap
from pretune.runtime.arrays import Array
from pretune.runtime.figures import SPINE, draw_heat_map, plain_label

EARLIER, LATER, ITSELF = (
    "#d9822b",
    "#2f6fde",
    "#8fa0c4",
)  # colors of attention to words before, after, and to the word itself
FAINTEST = 0.05  # weight of an arc that is drawn
BULGE = 0.6  # width of an arc by its height
COLORS = "Blues"
WEIGHT = "attention weight"


def draw_head_grid(one: AttentionMap) -> Any:
    """Draw a small heat map of each head's weights, layers in rows, heads in columns; return the figure."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    layers, heads, units = len(one.weights), max(map(len, one.weights)), len(one.units)
    gap = max(1, units // 12)
    step = units + gap
    mosaic = np.full((layers * step - gap, heads * step - gap), np.nan)
    for layer, weights in enumerate(one.weights):
        for head, weight in enumerate(weights):
            top, left = layer * step, head * step
            mosaic[top : top + units, left : left + units] = weight
    side = min(1.1, 11 / max(layers, heads))
    figure = Figure(figsize=(heads * side + 1.9, layers * side + 1.3), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(np.ma.masked_invalid(mosaic), cmap=COLORS, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    axes.set_xticks([head * step + units / 2 - 0.5 for head in range(heads)], map(str, range(1, heads + 1)))
    axes.set_yticks([layer * step + units / 2 - 0.5 for layer in range(layers)], map(str, range(1, layers + 1)))
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#dfe2e8")
    _color_bar(figure, image, axes, WEIGHT, shrink=min(0.9, 3.0 / (layers * side)))
    title = plain_label(one.text, int(11 * figure.get_figwidth()))
    figure.suptitle(f"{title}\nrows of a map attend to its columns", fontsize="medium")
    return figure


def draw_head(one: AttentionMap, layer: int, head: int) -> Any:
    """Draw the attention weights of one head as a heat map and as arcs between words, and return the figure.

    `layer` and `head` count from 1.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    weights = one.head(layer, head)
    labels = [plain_label(unit) for unit in one.units]
    size = max(2.4, 0.27 * len(labels))
    names = 0.085 * max(map(len, labels))
    figure = Figure(figsize=(2 * size + 2 * names + 1.6, size + names + 0.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    image = draw_heat_map(
        left, weights, rows=one.units, columns=one.units, cmap=COLORS, norm=PowerNorm(0.5, 0, 1), aspect="equal"
    )
    left.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    left.set_xlabel("attends to")
    _color_bar(figure, image, left, WEIGHT)
    _draw_arcs(right, weights, labels, one.special)
    figure.suptitle(f"layer {layer}, head {head}")
    return figure


def _draw_arcs(axes: Any, weights: Array, labels: Sequence[str], special: Array) -> None:
    """Draw the words of a text in a column, with an arc from each word to the words that it attends to.

    Arcs to earlier words are on the left, arcs to later words on the right.
    """
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Arc, Patch

    count = len(labels)
    inner = 0.4 + 0.13 * max(map(len, labels))  # half of the width for words, in rows
    for place, label in enumerate(labels):
        box = {
            "boxstyle": "round,pad=0.2",
            "edgecolor": "none",
            "facecolor": to_rgba(ITSELF, float(weights[place, place])),
        }
        color = "#5b6275" if special[place] else "#1d2330"
        axes.text(0, place, label, ha="center", va="center", color=color, fontsize="small", bbox=box)
    reach = [inner, inner]
    for query, key in zip(*np.nonzero(weights >= FAINTEST), strict=True):
        if query == key:
            continue
        weight, earlier = float(weights[query, key]), bool(key < query)
        middle, height = (query + key) / 2, abs(int(query) - int(key))
        angles = (90, 270) if earlier else (-90, 90)
        width = 2 * max(0.8, BULGE * height)
        axes.add_patch(
            Arc(
                (-inner if earlier else inner, middle), width, height, theta1=angles[0], theta2=angles[1],
                color=EARLIER if earlier else LATER, linewidth=0.4 + 3.0 * weight, alpha=min(1.0, 0.1 + weight),
            )
        )  # fmt: skip
        reach[not earlier] = max(reach[not earlier], inner + width / 2)
    axes.set_xlim(-reach[0] - 0.5, reach[1] + 0.5)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_axis_off()
    handles = [
        Line2D([], [], color=EARLIER, linewidth=2, label="to earlier"),
        Line2D([], [], color=LATER, linewidth=2, label="to later"),
        Patch(color=to_rgba(ITSELF, 0.8), label="to itself"),
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize="small",
                handlelength=1.2, columnspacing=1.0)  # fmt: skip


def draw_head_values(rows: Sequence[Mapping[str, Any]], values: Mapping[str, str], diverging: bool = False) -> Any:
    """Draw one heat map, layers by heads, for each statistic or score of attention heads; return the figure.

    Parameters
    ----------
    rows
        One dictionary per head, with the keys `layer`, `head`, and those in `values`; a value of None is drawn in gray.
    values
        The values to draw: each key is a key of `rows` and the title of a heat map, its value is the label of the color
        bar.
    diverging
        Whether to use a diverging color map, with a neutral color at 0 between negative and positive values.
    """
    from matplotlib.colors import SymLogNorm
    from matplotlib.figure import Figure

    layers, heads = (max(int(row[name]) for row in rows) for name in ("layer", "head"))
    columns = min(3, len(values))
    lines = -(-len(values) // columns)
    side = min(0.32, 4.0 / max(layers, heads))
    wide, high = max(1.8, side * heads), max(1.2, side * layers)
    figure = Figure(figsize=(columns * (wide + 1.5) + 0.3, lines * (high + 1.0)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(lines, columns)).ravel()
    for number, (axes, (name, label)) in enumerate(zip(panels, values.items(), strict=False)):
        matrix = np.full((layers, heads), np.nan)
        for row in rows:
            if row[name] is not None:
                matrix[int(row["layer"]) - 1, int(row["head"]) - 1] = row[name]
        most = float(np.nanmax(np.abs(matrix))) if np.isfinite(matrix).any() else 1.0
        style: dict[str, Any] = {"cmap": "Blues", "vmin": 0.0, "vmax": most or 1.0}
        if diverging:
            # A few heads often matter far more than all others, whose differences a linear scale would hide.
            norm = SymLogNorm(linthresh=(most or 1.0) / 50, linscale=0.5, vmin=-(most or 1.0), vmax=most or 1.0)
            style = {"cmap": "RdBu_r", "norm": norm}
        numbers = [list(map(str, range(1, count + 1))) for count in (layers, heads)]
        image = draw_heat_map(axes, matrix, rows=numbers[0], columns=numbers[1], aspect="auto", **style)
        axes.tick_params(axis="x", rotation=0, labelsize="small")
        axes.tick_params(axis="y", labelsize="small")
        axes.set_title(name, fontsize="medium", fontweight="bold")
        axes.set_xlabel("head" if number >= len(values) - columns else "")
        axes.set_ylabel("" if number % columns else "layer")
        bar = _color_bar(figure, image, axes, label)
        if diverging:
            ticks = [factor * (most or 1.0) for factor in (-1.0, -0.1, 0.0, 0.1, 1.0)]
            bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
            bar.minorticks_off()
    for axes in panels[len(values) :]:
        axes.set_axis_off()
    return figure


def _color_bar(figure: Any, image: Any, axes: Any, label: str, shrink: float = 0.9) -> Any:
    bar = figure.colorbar(image, ax=axes, label=label, shrink=shrink, aspect=22 * min(1.0, 0.4 + shrink), pad=0.02)
    bar.outline.set_edgecolor(SPINE)
    bar.ax.tick_params(length=2, labelsize="small")
    return bar
