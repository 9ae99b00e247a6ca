"""Figures of probing results: accuracy by task and layer, where tasks are solved, and comparisons with controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pretune.probing.probes.layer_scores import TaskScores
from pretune.runtime.figures import figure_fonts, plain_label, save_figure
from pretune.runtime.html_report import embed_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"model": "#2f6fde", "untrained": "#d9822b", "control": "#8a5ad0", "majority": "#667085"}
COLUMNS = 3  # of small charts side by side
NAME = 32  # characters of the name of a task, at most
DARK = 0.55  # color value above which annotations are white


def draw_layers(scores: Sequence[TaskScores]) -> Figure:
    """Draw a heat map of tasks by layers, annotated with accuracies in percent.

    The color scale of each task starts at its majority-class baseline (or at its lowest accuracy, if that is lower) and
    ends at the accuracy of its best layer.
    """
    from matplotlib.figure import Figure

    layers = [layer.layer for layer in scores[0].layers]
    accuracy = np.array([[layer.accuracy for layer in task.layers] for task in scores])
    low = np.minimum(np.array([task.majority for task in scores]), accuracy.min(1))[:, None]
    span = accuracy.max(1, keepdims=True) - low
    shade = np.where(span > 0, (accuracy - low) / np.where(span > 0, span, 1), 0.0)
    figure = Figure(figsize=(2.6 + 0.55 * len(layers), 1.2 + 0.36 * len(scores)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shade, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(accuracy):
        color = "white" if shade[row, column] > DARK else "#1d2330"
        axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(layers)), map(str, layers))
    axes.set_yticks(range(len(scores)), [plain_label(task.task, NAME) for task in scores])
    axes.set_xlabel("layer (0: embeddings)")
    axes.set_title("accuracy in %; color: from majority class to best layer", fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


def draw_expected_layers(scores: Sequence[TaskScores]) -> Figure:
    """Draw each task's expected layer and center of gravity as bars, as in Tenney et al. (2019)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.2 + 0.45 * len(scores)), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(scores))
    for shift, name, color, values in (
        (-0.2, "expected layer", COLORS["model"], [task.expected_layer for task in scores]),
        (0.2, "center of gravity", COLORS["untrained"], [task.center_of_gravity for task in scores]),
    ):
        widths = [np.nan if value is None else value for value in values]
        axes.barh(at + shift, widths, 0.38, color=color, label=name)
        for place, value in zip(at + shift, values, strict=True):
            text = " –" if value is None else f" {value:.2f}"
            axes.text(value or 0.0, place, text, va="center", fontsize=8, color="#1d2330")
    axes.set_yticks(at, [plain_label(task.task, NAME) for task in scores])
    axes.set_ylim(len(scores) - 0.5, -0.5)  # the first task at the top, also where a bar is missing
    axes.set_xlim(0, 1.08 * max(layer.layer for task in scores for layer in task.layers) or 1)
    axes.set_xlabel("layer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)
    return figure


def draw_controls(scores: Sequence[TaskScores]) -> Figure:
    """Draw one chart of accuracy by layer per task, and return the figure.

    For comparison, each chart shows the accuracies on the control task, of an untrained model, and of the majority
    class.
    """
    from matplotlib.figure import Figure

    rows = -(-len(scores) // COLUMNS)
    columns = min(COLUMNS, len(scores))
    figure = Figure(figsize=(max(5.0, 3.2 * columns), 0.6 + 2.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, task in zip(grid.flat, scores, strict=False):
        layers = [layer.layer for layer in task.layers]
        axes.axhline(task.majority, color=COLORS["majority"], linestyle=":", linewidth=1.2, label="majority class")
        for name, label, values in (
            ("control", "control task (random labels)", [layer.control for layer in task.layers]),
            ("untrained", "untrained model", [layer.untrained for layer in task.layers]),
            ("model", "model", [layer.accuracy for layer in task.layers]),
        ):
            known: list[Any] = [value for value in values if value is not None]
            if known:
                axes.plot(layers, known, color=COLORS[name], label=label, linewidth=1.6, marker=".", markersize=3)
        axes.fill_between(
            layers,
            [x.low for x in task.layers],
            [x.high for x in task.layers],
            color=COLORS["model"],
            alpha=0.15,
            linewidth=0,
        )
        axes.set_title(plain_label(task.task, NAME), fontsize=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(scores) :]:
        axes.set_visible(False)
    figure.supxlabel("layer", fontsize=9)
    figure.supylabel("accuracy", fontsize=9)
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def write_figures(scores: Sequence[TaskScores], folder: Path) -> dict[str, str]:
    """Write the figures of probing results to a folder, as SVG and PNG; return the HTML of each figure by its name.

    The figure of expected layers is only written if several layers were probed with scalar mixes.
    """
    drawings = {"layers": draw_layers, "controls": draw_controls}
    if len(scores[0].layers) > 1 and all(task.mix_weights for task in scores):
        drawings["expected-layers"] = draw_expected_layers
    written = {}
    with figure_fonts(task.task for task in scores):
        for name, draw in drawings.items():
            figure = draw(scores)
            save_figure(figure, folder, name)
            written[name] = embed_figure(figure)
    return written
