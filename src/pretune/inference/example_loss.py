"""The loss of a model on examples: on labeled rows for its task, on texts for its pretraining objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.length_bucketing import batches_by_length, text_batches
from pretune.models.model import Model
from pretune.models.name_resolution import ModelReference
from pretune.objectives import Data, Task
from pretune.objectives.objective import Loss, Objective
from pretune.packed import Batch
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.text_files import read_text_file


def task_batches(model: Model, task: Task, rows: Any, length: int) -> list[Batch]:
    """Return labeled examples (`rows`) as batches with the targets of a task, truncated to `length` tokens."""
    tokenizer = model.require_tokenizer()
    length = min(length, model.longest or length)
    examples = task.tokenize_examples(Data(tokenizer, model.family.template, rows=rows), length)
    return list(batches_by_length(examples, lambda part: task.corrupt(part, tokenizer, EpochRandom(0))))


def masked_text_batches(model: Model, objective: Objective, texts: Sequence[str]) -> list[Batch]:
    """Return batches of texts that are corrupted, such as masked, as in pretraining with an objective.

    The same texts always get the same masks.
    """
    tokenizer = model.require_tokenizer()
    return list(text_batches(model, texts, change=lambda part: objective.corrupt(part, tokenizer, EpochRandom(0))))


def batch_loss(model: Model, objective: Objective, batch: Batch) -> Loss:
    """Run a model on a batch, and return the terms of an objective's loss, each as a sum over its targets."""
    return objective.loss(model.root.heads[objective.name], model.backbone, batch)


@dataclass(frozen=True)
class ExampleLoss:
    """A model, one of its trained objectives, and batches of examples on which to measure the loss."""

    model: Model
    objective: Objective
    batches: list[Batch]

    @classmethod
    def read(
        cls, model: Model, reference: ModelReference, file: Path, text: str | None, label: str | None, length: int
    ) -> ExampleLoss:
        """Read a file of labeled examples for a fine-tuned model, or of texts for a pretrained model.

        `text` and `label` name columns of the file, and `length` is the maximum number of tokens of an example.
        """
        stored = stored_objectives(reference)
        parts = stored.objectives if stored is not None else []
        for task in (part for part in parts if isinstance(part, Task)):
            model.require_trained(task.name, reference, "fine-tune it first")
            rows = task.read(file, {role: name for role, name in (("text", text), ("label", label)) if name})
            task.check_labels(rows)
            return cls(model, task, task_batches(model, task, rows, length))
        for objective in parts:
            if not (objective.two_sided or objective.learns_from_rows):
                model.require_trained(objective.name, reference, f"pretrain it with {objective.name} first")
                texts = [line.text for line in read_text_file(file, text) if line.text.strip()]
                batches = masked_text_batches(model, objective, texts)
                found = cls(model, objective, batches)
                if not any(sum(batch.counts.get(term, 0) for term in batch.targets) for batch in batches):
                    raise PretuneError(
                        f"{file}: the texts are too short to measure the loss of the objective {objective.name!r}; give more or longer texts"
                    )
                return found
        names = ", ".join(part.name for part in parts)
        raise PretuneError(
            f"{reference}: the loss cannot be measured, because the model has {f'only heads for {names}' if names else 'no trained head'}; "
            "choose a model that was fine-tuned for a task, or pretrained with an objective such as 'mlm' or 'lm'"
        )

    @torch.no_grad()
    def mean(self) -> float:
        """Return the mean loss per target over all batches, summed over the terms of the objective."""
        device = choose_device()
        self.model.root.ready(device)
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for batch in self.batches:
            found = batch_loss(self.model, self.objective, batch.to(device))
            for term, value in found.sums.items():
                sums[term] = sums.get(term, 0.0) + found.weights.get(term, 1.0) * float(value)
                counts[term] = counts.get(term, 0.0) + batch.counts.get(term, 0.0)
        return sum(value / max(counts[term], 1.0) for term, value in sums.items())
