"""The embedding of image regions: from the features and the location of a region to a vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError

LOCATION = 5  # x1, y1, x2, y2 as fractions of the image, and the share of its area


class RegionEmbedding(nn.Module):
    """A linear map of the features of a region plus one of its location, then norm and dropout (ViLBERT)."""

    def __init__(self, features: int, width: int, *, eps: float, dropout: float = 0.0) -> None:
        """Build the embedding of regions with `features` numbers from a detector each."""
        super().__init__()
        self.features, self.location = Linear(features, width), Linear(LOCATION, width)
        self.norm, self.dropout = LayerNorm(width, eps), Dropout(dropout)
        self.compute = torch.float32  # the dtype of all computations that follow

    @property
    def width(self) -> int:
        """The width of the vectors of regions."""
        return self.features.out_features

    def forward(self, packed: Packed) -> Tensor:
        """Return the vectors of regions, whose columns `features` and `locations` are read: (n, width)."""
        features, known = packed.columns["features"], self.features.in_features
        if features.shape[1] != known:
            raise PretuneError(
                f"the features of a region are {features.shape[1]} numbers, and the model was trained with {known}; "
                "use features of the same detector as in its training"
            )
        x = self.features(features.to(self.compute)) + self.location(packed.columns["locations"].to(self.compute))
        return self.dropout(self.norm(x))

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that the embedding keeps for the backward pass to `saved`: inputs, and that of the norm."""
        saved.width += self.features.in_features + self.location.in_features
        saved.add(self.norm)
