"""Prefix language modeling (Raffel et al., 2020; UniLM's sequence to sequence, Dong et al., 2019) in a single stack.

I am happy to join with you today
reads   I am happy to, both ways
writes  join with you today, each token from those before it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, prefix
from pretune.objectives.objective import Data, Loss, Objective, token_loss
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import totals
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class Prefix(Objective):
    """Each text is cut at a random place. What is before it is read both ways; the rest, its end too, is predicted."""

    name: ClassVar[str] = "prefix"
    pattern: ClassVar[Pattern | None] = prefix
    insists: ClassVar[bool] = False
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Column `prefix` says what is read both ways; targets are the next tokens from its last one on."""
        lengths, special = sequences.lengths, sequences.columns["special"]
        first = np.minimum.reduceat(np.where(special, lengths.max(initial=0), sequences.place), sequences.offsets[:-1])
        text = totals(~special, lengths)
        # A token of the text at least on either side, where there are two.
        cut = first + np.minimum(1, text - 1) + draws.integers(np.maximum(1, text - 1), "cut", sequences.index)
        cut = np.repeat(np.clip(cut, 1, lengths), lengths)
        place = sequences.place
        sequences.columns["prefix"] = (place < cut).astype(np.int64)
        at = np.flatnonzero((place >= cut - 1) & (place < np.repeat(lengths, lengths) - 1))
        sequences.targets[self.name] = (at, sequences.ids[at + 1])
        sequences.pattern = self.pattern
        sequences.second = None  # one stack does both
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token but the first of a sequence."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of what follows the prefix."""
        return token_loss(self.name, head, backbone, batch)
