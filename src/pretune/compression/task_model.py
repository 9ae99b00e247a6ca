"""A trained model with its task, and tables that compare such models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.compression.measurement import compare, quality, verdict
from pretune.compression.pruning import Examples
from pretune.inference.batching import by_length
from pretune.models.checkpoint_heads import trained_for
from pretune.models.loading import load
from pretune.models.model import Model
from pretune.models.references import find_folder
from pretune.objectives import Data, Task
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.runtime.randomness import Draws

MOST = 1000  # examples that importance is measured on, at most
LENGTH = 128  # tokens of such an example, at most


@dataclass(frozen=True)
class Trained:
    """A model from a folder, and the task it was trained for, if any."""

    folder: Path
    model: Model
    task: Task | None

    @classmethod
    def load(cls, reference: str | Path, partial: bool = False) -> Trained:
        """Load a model and its task; raise an error if the head of the task was never trained."""
        mixture = trained_for(reference)
        tasks = [part for part in mixture.objectives if isinstance(part, Task)] if mixture is not None else []
        model = load(reference, partial=partial)
        if tasks:
            model.need_trained(tasks[0].name, reference, "fine-tune it first")
        return cls(find_folder(reference), model, tasks[0] if tasks else None)

    def need_task(self, why: str) -> Task:
        """Return the task, or raise an error that says why one is needed."""
        if self.task is None:
            raise PretuneError(f"{self.folder}: this model was not trained for a task, but {why}; fine-tune it first")
        return self.task

    @property
    def objective(self) -> str:
        """The objective that the model was trained with, as `finetune` takes it."""
        return self.model.objective or (self.task.name if self.task is not None else "")

    def read(self, file: str | Path | None, columns: Mapping[str, str], answered: bool = True) -> Any:
        """Read the examples of a file, and check that the model knows their labels; return None without a file."""
        if file is None:
            return None
        task = self.need_task(f"{file} has examples of one")
        rows = task.read(file, columns, answered=answered)
        if answered:
            task.check_labels(rows)
        return rows

    def examples(self, rows: Any, most: int = MOST) -> Examples:
        """Return batches of some examples, with the loss of the task, to measure importance on."""
        task = self.task
        if rows is None or task is None:
            return Examples([])
        rows = rows.take(range(min(most, len(rows))))
        tokenizer, length = self.model.need_tokenizer(), min(LENGTH, self.model.backbone.longest or LENGTH)
        laid = task.lay_out(Data(tokenizer, self.model.family.template, rows=rows), length)
        batches = list(by_length(laid, lambda sequences: task.corrupt(sequences, tokenizer, Draws(0))))

        def loss(model: Model, batch: Batch) -> torch.Tensor:
            sums = task.loss(model.root.heads[task.name], model.backbone, batch).sums
            return torch.stack(list(sums.values())).sum()

        return Examples(batches, loss)


def beside(models: Mapping[str, Trained], dev: Any) -> dict[str, Any]:
    """Compare models by quality (if there are examples), size, latency, and throughput.

    Return one table row per model under `beside`, and how the last model, the compressed one, relates to the first, the original.
    """
    costs = compare({name: (one.model, one.task, one.folder) for name, one in models.items()}, dev)
    rows, scores = [], {}
    for name, one in models.items():
        row: dict[str, Any] = {"model": name, **costs[name].describe()}
        if dev is not None and one.task is not None:
            scores[name] = quality(one.model, one.task, dev)[one.task.decides]
            row[one.task.decides] = scores[name]
        rows.append(row)
    first, last = next(iter(models)), list(models)[-1]
    facts = verdict(costs[first], costs[last])
    if "but" in facts:
        say(f"compressed, but {facts['but']}")
    if scores.get(first):
        facts["share_of_quality"] = scores[last] / scores[first]
    return {"beside": rows, **facts}
