"""The base of compression jobs: labeled data, and fine-tuning to recover quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pretune.training.jobs.finetuning import FinetuningJob, resolve_finetuning
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule

SECTIONS = ("optimizer", "schedule", "batch", "monitor")


@dataclass(frozen=True, kw_only=True)
class CompressionJob:
    """A compression job: the options that distillation, pruning, quantization, and search have in common."""

    out: Path
    train: str | None = None
    dev: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    epochs: float = 3.0
    budget: Budget | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    batch: Batching | None = None
    monitor: Monitoring | None = None
    seed: int = 0
    device: str | None = None
    compare: bool = True  # the result with the original, by size, speed and quality

    @property
    def sections(self) -> dict[str, Any]:
        """The training settings of the job that are set: sections of a recipe, such as `optimizer`, by name."""
        return {name: section for name in SECTIONS if (section := getattr(self, name)) is not None}

    def write_recipe(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe with the given command-line options (`options`) and the training settings of the job."""
        budget = {} if self.budget is None else {"budget": self.budget}
        sections = {
            name: {key: value for key, value in asdict(section).items() if value is not None}
            for name, section in (self.sections | budget).items()
        }
        return {name: value for name, value in {**options, **sections}.items() if value not in (None, "", [], (), {})}

    def finetuning(
        self, model: str | Path, out: Path, objective: str, strategy: str = "full", train: str | None = None
    ) -> FinetuningJob:
        """Return a job that fine-tunes a model on the labeled data of this compression job, and writes it to `out`.

        `train` is a file of training examples that replaces the one of this job.
        """
        shared = {name: getattr(self, name) for name in ("dev", "columns", "epochs", "budget", "seed", "device")}
        own = {"train": train or self.train or "", "out": out, "objective": objective, "strategy": strategy}
        return resolve_finetuning(str(model), {**own, **shared, **self.sections})
