"""Distillation of language models: beside the tokens themselves, the teacher's softened probabilities of them (Sanh et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pretune.objectives.distillation.teachers import beside
from pretune.objectives.objective import Loss, Objective
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone
    from pretune.models.model import Root

TERM = "match_logits"


@dataclass(frozen=True)
class SoftTokens:
    """`mlm` or `lm`, and the probabilities of a teacher with that head for the same tokens.

    `weight` is that of the divergence from the teacher, `own` that of the objective's loss.
    """

    objective: Objective
    teacher: Root = field(repr=False, compare=False)
    temperature: float = 2.0
    weight: float = 1.0
    own: float = 1.0

    def __getattr__(self, name: str) -> Any:
        if name == "objective":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.objective, name)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """The objective's; the same places once more."""
        sequences = self.objective.corrupt(sequences, tokenizer, draws)
        at = sequences.targets[self.objective.name][0]
        sequences.targets[TERM] = (at, np.zeros(len(at), dtype=np.int64))
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """As many again."""
        room = self.objective.room(packing)
        return room | {TERM: room[self.objective.name]}

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """The objective's, and the divergence from the teacher's probabilities."""
        loss = self.objective.loss(head, backbone, batch)
        targets, name = batch.targets[TERM], self.objective.name
        teacher = self.teacher
        with torch.no_grad():
            states = beside(backbone, teacher.backbone)(*batch.packed).last[targets.at]
            wanted = teacher.heads[name](states, teacher.backbone.embed.tokens)
        said = head(backbone(*batch.packed).last[targets.at], backbone.embed.tokens)
        count = min(said.shape[-1], wanted.shape[-1])  # sizes may be rounded differently
        logs = [(x[:, :count].float() / self.temperature).log_softmax(-1) for x in (said, wanted)]
        each = F.kl_div(logs[0], logs[1], reduction="none", log_target=True).sum(-1) * self.temperature**2
        loss.sums[TERM] = (each * targets.weight).sum()
        loss.weights |= {TERM: self.weight, name: self.own}
        return loss
