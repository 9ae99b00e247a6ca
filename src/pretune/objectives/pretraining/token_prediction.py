"""The head and the loss that objectives share which predict tokens of the vocabulary in one forward pass."""

from __future__ import annotations

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Loss, Objective, token_loss
from pretune.packed import Batch
from pretune.text.packing.sequences import Packing


class TokenPrediction(Objective):
    """Base class of objectives whose loss is the cross-entropy over the vocabulary at the targets of one term."""

    label_smoothing: float = 0.0

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return an upper bound on the number of targets per batch: every token."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return the model family's output layer over the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy at the targets, continuing from the recurrent state of the batch if it has one."""
        return token_loss(self.name, head, backbone, batch, self.label_smoothing)
