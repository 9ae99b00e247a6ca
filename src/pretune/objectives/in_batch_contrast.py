"""The contrastive loss of pairs of texts whose negatives are the other texts of the batch (Henderson et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from pretune.objectives.objective import Loss
from pretune.packed import Targets

EXCLUDED_SIMILARITY = -1e4  # the similarity of excluded pairs; finite, so that an empty batch has a finite loss


def in_batch_contrastive_loss(name: str, similar: Tensor, targets: Targets) -> Loss:
    """Return loss term `name`, the in-batch contrastive loss of m pairs of texts.

    `similar` (m, m) are the similarities of first texts (rows) and second texts (columns), and `targets` (m, 2) the ids
    of the texts. Padding, and texts that equal a pair's own text, do not count as negatives.
    """
    own = torch.eye(len(similar), dtype=torch.bool, device=similar.device)
    unused = targets.weight == 0
    losses = torch.zeros_like(targets.weight)
    for logits, text in ((similar, targets.target[:, 1]), (similar.T, targets.target[:, 0])):
        wrong = (text[:, None] == text[None]) | unused[None]
        masked = logits.masked_fill(wrong & ~own, EXCLUDED_SIMILARITY)
        losses = losses - masked.log_softmax(-1).diagonal() / 2
    right = similar.masked_fill(unused[None] & ~own, EXCLUDED_SIMILARITY).argmax(-1) == torch.arange(
        len(similar), device=similar.device
    )
    logs = {f"{name}/accuracy": (right.float() * targets.weight).sum().detach()}
    return Loss(sums={name: (losses * targets.weight).sum()}, logs=logs)
