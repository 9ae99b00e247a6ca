"""Distillation on texts without labels: a task learns the probabilities that a teacher gives (Hinton et al., 2015).

Rows with labels come first, and count as always; those after them are softened by a temperature, and their loss is multiplied by its
square, so that both weigh the same whatever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.sequences import Sequences
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Teaching:
    """What there is to learn from each row."""

    shares: Array  # (rows, classes) probabilities
    hard: int  # rows at the beginning that have labels
    temperature: float = 1.0


@dataclass(frozen=True)
class Soft:
    """A task with one of several classes to a sequence, whose targets are the rows of a table of probabilities."""

    task: Task
    teaching: Teaching
    tables: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        if name in ("task", "tables"):  # while it is being copied
            raise AttributeError(name)
        return getattr(self.task, name)

    def fit(self, examples: Any) -> Self:
        """With what the task must know of some examples."""
        return replace(self, task=self.task.fit(examples))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The task's; the target of a sequence is the number of its row."""
        sequences = self.task.corrupt(sequences, tokenizer, draws)
        sequences.targets[self.task.name] = (np.arange(len(sequences.lengths)), sequences.index)
        return sequences

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy with the teacher's probabilities."""
        name, targets = self.task.name, batch.targets[self.task.name]
        shares, heat = (part[targets.target] for part in self.table(targets.target.device))
        logits = self.task.outputs(head, backbone, batch)[targets.at].float()
        losses = -(shares * (logits / heat[:, None]).log_softmax(-1)).sum(-1) * heat.square()
        right = (logits.argmax(-1) == shares.argmax(-1)).float()
        logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)

    def table(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(rows, classes) probabilities, softened, and (rows,) temperatures; put on a device once."""
        if device not in self.tables:
            heat = np.where(np.arange(len(self.teaching.shares)) < self.teaching.hard, 1.0, self.teaching.temperature)
            shares = self.teaching.shares.astype(np.float64) ** (1 / heat[:, None])
            shares /= shares.sum(-1, keepdims=True)
            table, heats = (torch.from_numpy(x).float().to(device) for x in (shares, heat))
            self.tables[device] = (table, heats)
        return self.tables[device]


Task.register(Soft)  # what it lacks, its task has; Python 3.12 would not look there
