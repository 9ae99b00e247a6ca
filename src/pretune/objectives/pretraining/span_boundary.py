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
    """An output layer that predicts a masked token from its position in a span and the states beside the span."""

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

        `at` (m, 3) has the index of the token left of the span, that of the token right of it, and the position in the
        span; `states` are (tokens, width), and the result is (m, 2 · width + PLACE_WIDTH).
        """
        left, right, place = at.unbind(1)
        return torch.cat([states[left], states[right], self.places(place).to(states.dtype)], dim=1)

    def forward(self, seen: Tensor, tokens: Tensor) -> Tensor:
        """Return logits (m, vocabulary), given the vectors `seen` (m, …) that `look` returns and the token embeddings.

        `tokens` (vocabulary, width) are the token embeddings.
        """
        out: Tensor = self.output(self.inner(seen), tokens)
        return out


def boundary_targets(sequences: Sequences, at: Array, first: Array) -> tuple[Array, Array]:
    """Return which masked tokens can be predicted from the tokens beside their span, and the inputs to predict them.

    `at` (m,) are the masked tokens and `first` (m,) the first tokens of their spans. The first result is a mask (m,);
    the second has one row per predictable token, (k, 3): the indices of the tokens left and right of the span, and the
    position in the span.
    """
    last = at[np.searchsorted(first, first, side="right") - 1]
    offsets, owner = sequences.offsets, sequences.owner[at]
    left, right, place = first - 1, last + 1, at - first
    good = (left >= offsets[owner]) & (right < offsets[owner + 1]) & (place < PLACES)
    return good, np.stack([left, right, place], axis=1)[good]
