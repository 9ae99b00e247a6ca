"""Experiment trackers: send the metrics and settings of a training to TensorBoard or Weights & Biases.

RUN/tensorboard     event files of TensorBoard
RUN/wandb           files of Weights & Biases, and wandb_run.json with the id under which a resumed run continues
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from pretune.runtime.atomic_io import write_json
from pretune.runtime.optional_imports import import_optional
from pretune.runtime.output_paths import RECIPE
from pretune.runtime.parsing import read_mapping
from pretune.runtime.recipe import flatten_settings, read_recipe

TENSORBOARD, WANDB_RUN = "tensorboard", "wandb_run.json"
PROJECT = "pretune"  # of Weights & Biases, unless the environment variable WANDB_PROJECT names another


class Tracker(Protocol):
    """The interface of experiment trackers, which receive the settings of a training first, then its metrics."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or an evaluation, by name."""

    def close(self) -> None:
        """Send or write all remaining metrics, and close the tracker."""


class TensorBoard:
    """An experiment tracker that writes event files of TensorBoard.

    A resumed run replaces the entries of the steps that it repeats.
    """

    def __init__(self, run: Path, step: int, settings: Mapping[str, Any]) -> None:
        """Open an event file in the run folder `run` for the steps after `step`."""
        import_optional("tensorboard", "--log-to tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.settings = settings
        self.names: dict[str, None] = {}  # of the evaluation metrics
        self.writer: Any = SummaryWriter(str(run / TENSORBOARD), purge_step=step + 1 if step else None)  # type: ignore[no-untyped-call]
        rows = [f"| {name} | {value} |" for name, value in settings.items()]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]), step)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a training step or an evaluation as scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
            if name.startswith("dev/"):
                self.names[name] = None

    def close(self) -> None:
        """Write the settings and the evaluation metrics for TensorBoard's HParams page, and close the event file."""
        from torch.utils.tensorboard.summary import hparams

        plain = {name: x if isinstance(x, int | float | bool | str) else str(x) for name, x in self.settings.items()}
        for summary in hparams(plain, dict.fromkeys(self.names, 0.0)):  # type: ignore[no-untyped-call]
            self.writer.file_writer.add_summary(summary)
        self.writer.close()


class WeightsAndBiases:
    """An experiment tracker that sends metrics to Weights & Biases.

    It uses the account of `wandb login`, or only writes files with WANDB_MODE=offline.
    """

    def __init__(self, run: Path, step: int, settings: Mapping[str, Any]) -> None:
        """Start a Weights & Biases run for the run folder `run`.

        If training was resumed after step `step`, continue the earlier Weights & Biases run.
        """
        wandb = import_optional("wandb", "--log-to wandb")
        file = run / WANDB_RUN
        known = read_mapping(file, "the id of a run of Weights & Biases") if step and file.is_file() else {}
        identifier = str(known.get("id") or uuid4().hex[:12])
        write_json(file, {"id": identifier})
        self.run = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else PROJECT,
            name=str(run),
            id=identifier,
            resume="allow",
            dir=str(run),
            config=dict(settings),
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or an evaluation."""
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send all remaining metrics, and finish the run of Weights & Biases."""
        self.run.finish()


TRACKERS: dict[str, Callable[[Path, int, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def open_trackers(names: Sequence[str], run: Path, step: int) -> list[Tracker]:
    """Open the experiment trackers with the given names for a run folder whose training continues after step `step`."""
    if not names:
        return []
    recipe = run / RECIPE
    settings = flatten_settings(read_recipe(recipe)) if recipe.is_file() else {}
    return [TRACKERS[name](run, step, settings) for name in dict.fromkeys(names)]
