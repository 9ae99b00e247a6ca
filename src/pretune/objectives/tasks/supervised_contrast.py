"""Supervised contrastive learning (Khosla et al., 2020): texts of one class get similar vectors, others dissimilar.

It tunes an encoder on few labels before a classifier is fitted to its vectors, as in SetFit (Tunstall et al., 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.pooling import pool
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedTask
from pretune.packed import Batch

EXCLUDED = -1e4  # the similarity of a text to itself and to padding; finite, so that an empty batch has a finite loss


@dataclass(frozen=True)
class SupervisedContrast(WrappedTask):
    """A classification task trained by a contrastive loss on the vectors of the texts in a batch, without its head.

    The vector of a text is the mean of the last layer's hidden states; cosines are divided by `temperature`.
    """

    task: Task
    temperature: float = 0.1

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of finding the other texts of the same class among all texts of a batch."""
        targets = batch.targets[self.name]
        vectors = pool(backbone(*batch.packed).last, batch.packed[-1], "mean")[targets.at]
        used = targets.weight > 0
        losses, found = supervised_contrastive_losses(vectors.float(), targets.target, used, self.temperature)
        logs = {f"{self.name}/accuracy": (found * targets.weight).sum().detach()}
        return Loss(sums={self.name: (losses * targets.weight).sum()}, logs=logs)


def supervised_contrastive_losses(
    vectors: Tensor, classes: Tensor, used: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return each text's contrastive loss, (m,), and whether its nearest other text has the same class, (m,).

    `vectors` (m, width) and `classes` (m,) belong to the texts of a batch; `used` (m,) is False for padding. A text
    that is the only one of its class has a loss of 0.

    >>> near = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    >>> losses, _ = supervised_contrastive_losses(near, torch.tensor([0, 0, 1, 1]), torch.ones(4) > 0, 0.1)
    >>> bool(losses.max() < 1e-3)
    True
    """
    unit = F.normalize(vectors, dim=-1)
    own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    hidden = own | ~used[None]
    logits = (unit @ unit.T / temperature).masked_fill(hidden, EXCLUDED)
    same = ((classes[:, None] == classes[None]) & ~hidden).float()
    losses = -(logits.log_softmax(-1) * same).sum(-1) / same.sum(-1).clamp(min=1)
    return losses, same.gather(-1, logits.argmax(-1, keepdim=True))[:, 0]
