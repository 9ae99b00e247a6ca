"""Distillation by answers: a task learns the probabilities that a teacher gives (Hinton et al., 2015).

Rows with labels come first; what the teacher says of them may count beside the labels. Those after them are learned from the
teacher alone. Probabilities are softened by a temperature, and the loss is multiplied by its square, so that both weigh the same
whatever it is. With `mse`, logits are matched instead (Ba and Caruana, 2014; Tang et al., 2019); what is the same for all classes
does not matter to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]
SMALLEST = 1e-7  # probability whose logarithm is taken


@dataclass(frozen=True)
class Teaching:
    """What there is to learn from each row."""

    shares: Array  # (rows, classes) probabilities: of rows with labels, 1 for the label; of the others, the teacher's
    hard: int  # rows at the beginning that have labels
    temperature: float = 1.0
    taught: Array | None = None  # (hard, classes) the teacher's probabilities for rows with labels
    soft: float = 0.0  # how much these count; the labels count the rest
    match: Literal["kl", "mse"] = "kl"


@dataclass(frozen=True)
class Soft:
    """A task with one of several classes to a sequence, whose targets are the rows of tables of probabilities."""

    task: Task
    teaching: Teaching
    tables: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

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
        """Cross-entropy with labels, and with the teacher's probabilities."""
        name, targets = self.task.name, batch.targets[self.task.name]
        known, taught, share = (part[targets.target] for part in self.table(targets.target.device))
        logits = self.task.outputs(head, backbone, batch)[targets.at].float()
        hard = -(known * logits.log_softmax(-1)).sum(-1)
        losses = (1 - share) * hard + share * self.distance(logits, taught)
        right = (logits.argmax(-1) == torch.where(share[:, None] < 1, known, taught).argmax(-1)).float()
        logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)

    def distance(self, logits: Tensor, taught: Tensor) -> Tensor:
        """(m, classes) and the teacher's probabilities → (m,)."""
        theirs = taught.clamp(min=SMALLEST).log()
        if self.teaching.match == "mse":
            ours, theirs = (x - x.mean(-1, keepdim=True) for x in (logits, theirs))
            return (ours - theirs).square().mean(-1)
        heat = self.teaching.temperature
        wanted = (theirs / heat).log_softmax(-1)
        said = (logits / heat).log_softmax(-1)
        return F.kl_div(said, wanted, reduction="none", log_target=True).sum(-1) * heat**2

    def table(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, classes) of labels and of the teacher, and (rows,) how much the teacher counts; put on a device once."""
        if device not in self.tables:
            teaching = self.teaching
            rows, hard = len(teaching.shares), teaching.hard
            taught = teaching.shares.copy()
            if teaching.taught is not None:
                taught[:hard] = teaching.taught
            share = np.where(np.arange(rows) < hard, teaching.soft, 1.0)
            known, given, counts = (torch.from_numpy(x).float().to(device) for x in (teaching.shares, taught, share))
            self.tables[device] = (known, given, counts)
        return self.tables[device]


Task.register(Soft)  # what it lacks, its task has; Python 3.12 would not look there
