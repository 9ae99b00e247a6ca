"""Figures of presets and objectives: position codes, the learning rate, attention patterns, and attention masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.models.create_model import make_model
from pretune.models.presets import find_preset
from pretune.nn.attention.multi_head import GlobalAttention, RelativeAttention, SelfAttention
from pretune.nn.attention.patterns import Pattern, causal, effective_pattern, full
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from pretune.nn.initialization import SkipInitialization
from pretune.objectives import parse_objective
from pretune.objectives.demo import corrupt_demo, make_demo_data, spell
from pretune.runtime.arrays import Array
from pretune.runtime.figures import draw_heat_map, figure_fonts, save_figure
from pretune.text.packing.sequences import Sequences
from pretune.training.optim.schedules import lr_factor
from pretune.training.recipe_sections import Optimizer, Schedule, resolve_section

LONGEST = 512  # tokens of an attention pattern
POSITIONS = 128  # rows of the figure of position codes
STEPS = 1000  # points of the learning rate
BLUE = "#2f6fde"
MASK_STYLE: dict[str, Any] = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.4}


def plot_preset(name: str, folder: Path) -> list[Path]:
    """Draw the schedule of a preset and, if it has them, its attention patterns and sinusoidal position codes."""
    preset = find_preset(name)
    with torch.device("meta"), SkipInitialization():  # only the structure is needed
        backbone = make_model(name).backbone
    files = [*_plot_schedule(preset, folder)]
    objective = parse_objective(str(preset["objective"]), labels=("a", "b")).objectives[0]
    length = min(LONGEST, (preset.get("batch") or {}).get("max_length") or LONGEST)
    if patterns := layer_patterns(backbone, None if objective.two_sided else objective.pattern):
        files += _plot_patterns(patterns, length, folder)
    if sinusoidal := next((part for part in backbone.modules() if isinstance(part, SinusoidalPositions)), None):
        files += _plot_positions(sinusoidal, folder)
    return files


def plot_objective(expression: str, text: str, seed: int, folder: Path) -> list[Path]:
    """Draw the attention mask of an objective for an input that it makes from `text`, and return the figure's files."""
    from matplotlib.figure import Figure

    joint = parse_objective(expression).joints[0]
    with TemporaryDirectory() as scratch:
        material = make_demo_data(text, Path(scratch))
        joint, sequences, _ = corrupt_demo(joint, material, seed)
    sides = [(sequences, sequences.pattern or _pattern_of(joint.objectives))]
    if sequences.second is not None:
        sides = [(sequences, full), (sequences.second, causal)]
    words = [spell(side.ids[: side.lengths[0]], material.tokenizer) for side, _ in sides]
    size = 2.0 + 0.32 * max(map(len, words))
    with figure_fonts(word for some in words for word in some):
        figure = Figure(figsize=(size * len(sides), size), layout="constrained")
        for axes, (side, pattern), some, title in zip(
            np.atleast_1d(figure.subplots(1, len(sides))), sides, words, _titles(len(sides)), strict=True
        ):
            mask = attention_mask(pattern, mask_columns(side))
            draw_heat_map(axes, mask, rows=some, columns=some, title=title, **MASK_STYLE)
            axes.set_ylabel("a token")
            axes.set_xlabel("attends to")
        return save_figure(figure, folder, "mask")


def _titles(sides: int) -> list[str]:
    return ["attention mask"] if sides == 1 else ["encoder", "decoder"]


def _pattern_of(objectives: Any) -> Pattern:
    return next((part.pattern for part in objectives if part.pattern is not None), full)


def mask_columns(sequences: Sequences) -> dict[str, Tensor]:
    """Return the features of the first sequence's tokens that attention patterns read, such as position, (n,) each."""
    count = int(sequences.lengths[0])
    positions = sequences.index_in_sequence if sequences.positions is None else sequences.positions
    columns = {"position": positions, **{name: sequences.columns[name] for name in sequences.columns}}
    return {name: torch.from_numpy(np.asarray(column[:count])).long() for name, column in columns.items()}


def attention_mask(pattern: Pattern, columns: Mapping[str, Tensor]) -> Array:
    """Return a matrix, (n, n), that is 1.0 where a query (row) may attend to a key (column), and otherwise 0.0.

    `columns` has the features of the n tokens that the pattern reads, such as position, (n,) each.

    >>> attention_mask(causal, {"position": torch.arange(3)}).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    queries = {name: column[:, None] for name, column in columns.items()}
    keys = {name: column[None] for name, column in columns.items()}
    count = len(columns["position"])
    return np.asarray(pattern.allow(queries, keys).expand(count, count), dtype=np.float64)


def layer_patterns(backbone: Any, batch: Pattern | None) -> dict[str, Pattern]:
    """Return the different attention patterns of the layers of a backbone by title, such as "causal (12 layers)".

    `batch` is the pattern of the objective, such as causal, with which the pattern of a layer is combined if both are
    windows.
    """
    counts: dict[Pattern, int] = {}
    for part in backbone.modules():
        if isinstance(part, SelfAttention | RelativeAttention | GlobalAttention) and part.pattern.heads == 1:
            both = effective_pattern(part.pattern, batch)
            pattern = part.pattern if both.reach in (None, part.pattern.reach) else both
            counts[pattern] = counts.get(pattern, 0) + 1
    readable = {p: n for p, n in counts.items() if p.reach is not None}  # others read columns of a batch
    return {f"{p.name} ({n} layer{'s' if n > 1 else ''})": p for p, n in readable.items()}


def _plot_patterns(patterns: Mapping[str, Pattern], length: int, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(patterns), 4.0), layout="constrained")
    for axes, (title, pattern) in zip(np.atleast_1d(figure.subplots(1, len(patterns))), patterns.items(), strict=True):
        axes.imshow(attention_mask(pattern, {"position": torch.arange(length)}), interpolation="nearest", **MASK_STYLE)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("attends to position")
        axes.set_ylabel("position")
    return save_figure(figure, folder, "attention")


def _plot_schedule(preset: Mapping[str, Any], folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    schedule = resolve_section(Schedule, None, dict(preset.get("schedule") or {}))
    optimizer = resolve_section(Optimizer, None, dict(preset.get("optimizer") or {}))
    ends = np.arange(1, STEPS + 1) / STEPS
    rates = [(optimizer.base_lr or 1.0) * lr_factor(schedule, end - 1 / STEPS, end) for end in ends]
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(100 * ends, rates, color=BLUE)
    axes.set_xlabel("% of the budget")
    axes.set_ylabel("learning rate")
    axes.set_title(f"{schedule.kind}, warmup {100 * (schedule.warmup_ratio or 0):g} %", fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, folder, "schedule")


def _plot_positions(positions: SinusoidalPositions, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.subplots()
    codes = positions(torch.arange(POSITIONS)).numpy()
    image = axes.imshow(codes, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    axes.set_title("sinusoidal position codes", fontsize="medium")
    figure.colorbar(image, ax=axes)
    return save_figure(figure, folder, "positions")
