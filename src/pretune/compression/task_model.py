"""A trained model together with its task, and the comparison of such models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.compression.benchmark import evaluate_quality, measure_costs, summarize_gains
from pretune.compression.pruning import ImportanceData
from pretune.inference.example_loss import batch_loss, task_batches
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.models.name_resolution import find_folder
from pretune.objectives import Task
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.parsing import read_mapping, validate_schema
from pretune.runtime.progress import log_info
from pretune.text.examples.labeled import ROLES
from pretune.training.jobs.finetuning import SPLIT
from pretune.training.run_folder import RECIPE, finished_run

MAX_EXAMPLES = 1000  # examples that importance is measured on, at most
MAX_LENGTH = 128  # tokens of such an example, at most


@dataclass(frozen=True)
class TrainedModel:
    """A model from a folder, and the task it was trained for, if any."""

    folder: Path
    model: Model
    task: Task | None

    @classmethod
    def load(cls, reference: str | Path, ignore_mismatched: bool = False) -> TrainedModel:
        """Load a model with its task, if it has one; raise an error if the head of the task was never trained."""
        mixture = stored_objectives(reference)
        tasks = [part for part in mixture.objectives if isinstance(part, Task)] if mixture is not None else []
        model = load(reference, ignore_mismatched=ignore_mismatched)
        if tasks:
            model.require_trained(tasks[0].name, reference, "fine-tune it first")
        return cls(find_folder(reference), model, tasks[0] if tasks else None)

    def require_task(self, why: str) -> Task:
        """Return the task of the model; if it has none, raise an error that gives `why` as the reason to need one."""
        if self.task is None:
            raise PretuneError(f"{self.folder}: this model was not trained for a task, but {why}; fine-tune it first")
        return self.task

    @property
    def objective(self) -> str:
        """The objective that the model was trained with, as an expression for `pretune finetune --objective`."""
        return self.model.objective or (self.task.name if self.task is not None else "")

    def read(self, file: str | Path | None, columns: Mapping[str, str]) -> Any:
        """Return the labeled examples of a file, if one is given; raise an error for labels that the model lacks."""
        if file is None:
            return None
        task = self.require_task(f"{file} has labeled examples")
        rows = task.read(file, columns)
        task.check_labels(rows)
        return rows

    def training_examples(self) -> Any:
        """Return the examples that the model was fine-tuned on, without those that were held out.

        It is None if the model's folder does not name their file, or if the file cannot be read any more.
        """
        run, split = finished_run(self.folder), self.folder / SPLIT
        if run is None or self.task is None:
            return None
        try:
            recipe = run.recipe
            if not isinstance(train := recipe.get("train"), str):  # several tasks, or not fine-tuned
                return None
            given = {role: recipe[role] for role in ROLES if role in recipe}
            for names in (given, further := recipe.get("columns", {})):
                validate_schema(names, dict[str, str], f"{self.folder / RECIPE}: columns")
            held_out = read_mapping(split, "held-out rows").get("dev_rows") if split.is_file() else []
            dev_rows = set(validate_schema(held_out, list[int], f"{split}: dev_rows"))
            rows = self.task.read(train, given | further)
        except PretuneError:
            return None
        return rows.take([row for row in range(len(rows)) if row not in dev_rows])

    def importance_data(self, rows: Any) -> ImportanceData:
        """Return some labeled examples as batches, with the loss of the task, to measure importance or calibrate on."""
        task = self.task
        if rows is None or task is None:
            return ImportanceData([])
        rows = rows.take(range(min(MAX_EXAMPLES, len(rows))))
        batches = task_batches(self.model, task, rows, MAX_LENGTH)

        def loss(model: Model, batch: Batch) -> torch.Tensor:
            return torch.stack(list(batch_loss(model, task, batch).sums.values())).sum()

        return ImportanceData(batches, loss)


def compare_models(models: Mapping[str, TrainedModel], dev: Any) -> dict[str, Any]:
    """Return a comparison of models by size, latency, throughput and, if there are `dev` examples, quality.

    The entry `models` of the result has one row per model; the other entries compare the last model with the first.
    """
    costs = measure_costs({name: (one.model, one.task, one.folder) for name, one in models.items()}, dev)
    rows, scores = [], {}
    for name, one in models.items():
        row: dict[str, Any] = {"model": name, **costs[name].describe()}
        if dev is not None and one.task is not None:
            scores[name] = evaluate_quality(one.model, one.task, dev)[one.task.primary_metric]
            row[one.task.primary_metric] = scores[name]
        rows.append(row)
    first, last = next(iter(models)), list(models)[-1]
    if dev is None and models[last].task is not None:
        log_info("quality was not measured; give labeled examples with --dev")
    facts = summarize_gains(costs[first], costs[last])
    if "warning" in facts:
        log_info(f"the model was compressed, but {facts['warning']}")
    if scores.get(first):
        facts["relative_quality"] = scores[last] / scores[first]
    return {"models": rows, **facts}
