"""The head and the loss that are shared by all objectives that predict tokens of the vocabulary."""

from __future__ import annotations

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Loss, Objective, token_loss
from pretune.packed import Batch
from pretune.text.packing.sequences import Packing


class TokenPrediction(Objective):
    """Base class of objectives that predict tokens, with the cross-entropy over the vocabulary as their loss."""

    label_smoothing: float = 0.0

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: the number of tokens in a batch."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary, as the model family defines it."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Run the backbone on a batch and return the cross-entropy over the vocabulary at its targets."""
        return token_loss(self.name, head, backbone, batch, self.label_smoothing)
