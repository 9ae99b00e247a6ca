"""The part that all compression jobs share: labeled data, and fine-tuning to recover quality."""

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
    """Options that distillation, pruning, quantization, and the search over them have in common."""

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

    @property
    def sections(self) -> dict[str, Any]:
        """The training settings that are given, by section."""
        given = {name: getattr(self, name) for name in SECTIONS}
        return {name: section for name, section in given.items() if section is not None}

    def write_recipe(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe with options of a verb and the training settings, without those that are not set."""
        budget = {} if self.budget is None else {"budget": self.budget}
        sections = {
            name: {key: value for key, value in asdict(section).items() if value is not None}
            for name, section in (self.sections | budget).items()
        }
        return {name: value for name, value in {**options, **sections}.items() if value not in (None, "", [], (), {})}

    def finetuning(
        self, model: str | Path, out: Path, objective: str, strategy: str = "full", train: str | None = None
    ) -> FinetuningJob:
        """Return the fine-tuning of a model in one folder to another, on the labeled data of this job."""
        given: dict[str, Any] = {
            "train": train or self.train or "",
            "dev": self.dev,
            "out": out,
            "columns": dict(self.columns),
            "objective": objective,
            "strategy": strategy,
            "epochs": self.epochs,
            "budget": self.budget,
            "seed": self.seed,
            "num_seeds": 1,
            "deterministic": False,
            "tokenizer": None,
            "from_scratch": False,
            "device": self.device,
            **self.sections,
        }
        return resolve_finetuning(str(model), given)
