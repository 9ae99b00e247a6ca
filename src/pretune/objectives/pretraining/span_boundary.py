"""The span boundary objective (Joshi et al., 2020, SpanBERT): predict masked tokens from the two tokens next to their span."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, TiedVocabularyHead
from pretune.runtime.arrays import Array
from pretune.text.packing.sequences import Sequences

PLACES = 20  # positions inside a span; tokens further inside are not predicted
PLACE_WIDTH = 200


class BoundaryHead(nn.Module):
    """An output layer that predicts a masked token from its position in a span and the states on both sides of it."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        vocabulary, vectors = backbone.embed.tokens.shape
        width = backbone.width
        self.places = LearnedPositions(PLACES, PLACE_WIDTH)
        self.inner = DenseTransform(2 * width + PLACE_WIDTH, F.gelu, LayerNorm(width), outputs=width)
        self.output = TiedVocabularyHead(vocabulary, DenseTransform(width, F.gelu, LayerNorm(vectors), outputs=vectors))
        initialize(self)

    def look(self, states: Tensor, at: Tensor) -> Tensor:
        """Concatenate, for each masked token, the states on both sides of its span and its position's embedding.

        `at` (m, 3) is left index, right index, position in the span; the result is (m, 2 · width + PLACE_WIDTH).
        """
        left, right, place = at.unbind(1)
        return torch.cat([states[left], states[right], self.places(place).to(states.dtype)], dim=1)

    def forward(self, seen: Tensor, tokens: Tensor) -> Tensor:
        """Return logits (m, vocabulary) for span-boundary vectors `seen` (from `look`) and embeddings `tokens`."""
        out: Tensor = self.output(self.inner(seen), tokens)
        return out


def boundary_targets(sequences: Sequences, at: Array, first: Array) -> tuple[Array, Array]:
    """Return which masked tokens `at` have a token on both sides of their span, and inputs (m, 3) to predict them from.

    Inputs are the indices of the two tokens beside the span, and the position in it; `first` (m,) are span starts.
    """
    last = at[np.searchsorted(first, first, side="right") - 1]
    offsets, owner = sequences.offsets, sequences.owner[at]
    left, right, place = first - 1, last + 1, at - first
    good = (left >= offsets[owner]) & (right < offsets[owner + 1]) & (place < PLACES)
    return good, np.stack([left, right, place], axis=1)[good]
