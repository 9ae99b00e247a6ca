"""An embedding of numeric features of tokens, such as the price of an item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pretune.nn.linear import Linear
from pretune.packed import Packed

LARGEST = 10.0  # standard deviations from the mean; larger values are clipped


class FeatureEmbedding(nn.Module):
    """A linear map from standardized numeric features of tokens to vectors that are added to the token embeddings.

    The mean and the deviation of each feature are saved with the model. Values are clipped to ten deviations.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, features: int, width: int, means: Sequence[float] = (), deviations: Sequence[float] = ()
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(means or [0.0] * features))
        self.register_buffer("deviation", torch.tensor(deviations or [1.0] * features))
        self.project = Linear(features, width)

    def forward(self, packed: Packed) -> Packed:
        """Return packed sequences with the vectors of the features, (n, features) → (n, width), as a further column."""
        values = (packed.columns["features"].float() - self.mean) / self.deviation
        vectors = self.project(values.clamp(-LARGEST, LARGEST))
        return replace(packed, columns={**packed.columns, "feature_vectors": vectors})
