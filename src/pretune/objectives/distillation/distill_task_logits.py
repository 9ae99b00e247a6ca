"""Distillation of a task's predictions: a student learns the class probabilities of a teacher (Hinton et al., 2015).

Labeled rows come first; for them, the teacher's probabilities can count beside the labels. Unlabeled rows follow, and
are learned from the teacher alone. Probabilities are softened by a temperature, and the loss is multiplied by the
square of the temperature, so that its weight does not depend on it. With `mse`, logits are matched instead (Ba and
Caruana, 2014; Tang et al., 2019), up to a constant that is the same for all classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedTask
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

SMALLEST = 1e-7  # lower bound of probabilities before the logarithm


@dataclass(frozen=True)
class TeacherTargets:
    """The class probabilities that a student is trained on in distillation, one row per example.

    The first `hard` rows of `shares` (rows, classes) are one-hot labels, and the others are the teacher's probabilities
    for unlabeled rows. `taught` (hard, classes) are the teacher's probabilities for the labeled rows, which have the
    weight `alpha` beside the labels.
    """

    shares: Array  # (rows, classes) probabilities: one-hot labels of labeled rows, the teacher's for the others
    hard: int  # the number of labeled rows, which come first
    temperature: float = 1.0
    taught: Array | None = None  # (hard, classes) the teacher's probabilities for labeled rows
    alpha: float = 0.0  # the weight of these; the labels have the rest
    match: Literal["kl", "mse"] = "kl"


@dataclass(frozen=True)
class DistillLogits(WrappedTask):
    """A classification task that is trained on labels and on the class probabilities of a teacher."""

    task: Task
    teaching: TeacherTargets
    tables: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the row number of each sequence's example as its target.

        `loss` uses it to look up the example's label and the teacher's probabilities.
        """
        sequences = self.task.corrupt(sequences, tokenizer, draws)
        sequences.targets[self.task.name] = (np.arange(len(sequences.lengths)), sequences.index)
        return sequences

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the weighted sum of the cross-entropy with the labels and the distance from the teacher's probabilities."""
        name, targets = self.task.name, batch.targets[self.task.name]
        known, taught, share = (part[targets.target] for part in self.table(targets.target.device))
        logits = self.task.outputs(head, backbone, batch)[targets.at].float()
        hard = -(known * logits.log_softmax(-1)).sum(-1)
        losses = (1 - share) * hard + share * self.distance(logits, taught)
        right = (logits.argmax(-1) == torch.where(share[:, None] < 1, known, taught).argmax(-1)).float()
        logs = {f"{name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)

    def distance(self, logits: Tensor, taught: Tensor) -> Tensor:
        """Return the distance of each row of `logits` from the teacher's probabilities `taught`, (rows,).

        The distance is the KL divergence or, with `teaching.match="mse"`, the mean squared error of the logits.
        """
        theirs = taught.clamp(min=SMALLEST).log()
        if self.teaching.match == "mse":
            ours, theirs = (x - x.mean(-1, keepdim=True) for x in (logits, theirs))
            return (ours - theirs).square().mean(-1)
        heat = self.teaching.temperature
        wanted = (theirs / heat).log_softmax(-1)
        said = (logits / heat).log_softmax(-1)
        return F.kl_div(said, wanted, reduction="none", log_target=True).sum(-1) * heat**2

    def table(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return the training targets of all rows on a device: labels, teacher probabilities, and the teacher's weight.

        Labels and teacher probabilities are (rows, classes) each; the teacher's weight in the loss is (rows,).
        """
        if device not in self.tables:
            teaching = self.teaching
            rows, hard = len(teaching.shares), teaching.hard
            taught = teaching.shares.copy()
            if teaching.taught is not None:
                taught[:hard] = teaching.taught
            share = np.where(np.arange(rows) < hard, teaching.alpha, 1.0)
            known, given, counts = (torch.from_numpy(x).float().to(device) for x in (teaching.shares, taught, share))
            self.tables[device] = (known, given, counts)
        return self.tables[device]
