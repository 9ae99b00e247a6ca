"""Distillation of language models: a student learns the tokens and a teacher's softened probabilities (Sanh et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.distillation.teachers import Teacher, cached_teacher
from pretune.objectives.objective import Loss, Objective
from pretune.objectives.wrappers import WrappedObjective
from pretune.packed import Batch
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

TERM = "match_logits"


@dataclass(frozen=True)
class DistillTokens(WrappedObjective):
    """A language-modeling objective plus the KL divergence from a teacher's token probabilities.

    `weight` is the loss weight of the divergence, `own` that of the objective.
    """

    objective: Objective
    teacher: Teacher = field(repr=False, compare=False)
    temperature: float = 2.0
    weight: float = 1.0
    own: float = 1.0

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Corrupt sequences as the wrapped objective does, and set its targets for the teacher's loss term, too."""
        sequences = self.objective.corrupt(sequences, tokenizer, draws)
        at = sequences.targets[self.objective.name][0]
        sequences.targets[TERM] = (at, np.zeros(len(at), dtype=np.int64))
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of targets per batch, by loss term, including the teacher's term."""
        room = self.objective.max_targets(packing)
        return room | {TERM: room[self.objective.name]}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the loss of the wrapped objective plus the KL divergence from the teacher's token probabilities."""
        loss = self.objective.loss(head, backbone, batch)
        targets, name = batch.targets[TERM], self.objective.name
        teacher = self.teacher
        with torch.no_grad():
            states = cached_teacher(backbone, teacher.backbone)(*batch.packed).last[targets.at]
            wanted = teacher.heads[name](states, teacher.backbone.embed.tokens)
        said = head(backbone(*batch.packed).last[targets.at], backbone.embed.tokens)
        count = min(said.shape[-1], wanted.shape[-1])  # the vocabularies may be padded to different sizes
        logs = [(x[:, :count].float() / self.temperature).log_softmax(-1) for x in (said, wanted)]
        each = F.kl_div(logs[0], logs[1], reduction="none", log_target=True).sum(-1) * self.temperature**2
        loss.sums[TERM] = (each * targets.weight).sum()
        loss.weights |= {TERM: self.weight, name: self.own}
        return loss
