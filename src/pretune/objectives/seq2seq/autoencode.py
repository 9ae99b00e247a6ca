"""Sequence autoencoding (Dai and Le, 2015, Semi-supervised Sequence Learning): read a text, then write the same text.

One stack does both: what it has read is in its state, and the loss is on what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Grows, Loss, token_loss
from pretune.objectives.pretraining.arrangements import spans_arrangement
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, PlannedEpoch, Sequences, plan_lengths
from pretune.text.store.store import spans_to_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class Autoencode(Grows):
    """Every sequence stands twice, one after the other; the second is predicted."""

    name: ClassVar[str] = "autoencode"
    pattern: ClassVar[Pattern | None] = causal
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences, half as long as sequences may be."""
        arrangement = spans_arrangement(data, packing.length // 2, draws)
        return PlannedEpoch(arrangement, plan_lengths(2 * arrangement.lengths, packing, draws))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Targets are the next tokens from the last one of the first text on."""
        starts, lengths = sequences.offsets[:-1], sequences.lengths
        order = spans_to_indices(np.repeat(starts, 2), np.repeat(lengths, 2))
        columns = {name: column[order] for name, column in sequences.columns.items()}
        made = Sequences(sequences.ids[order], 2 * lengths, sequences.index, columns, pattern=self.pattern)
        at = spans_to_indices(made.offsets[:-1] + lengths - 1, lengths)
        made.targets[self.name] = (at, made.ids[at + 1])
        return made

    def grown(self, packing: Packing) -> Packing:
        """Sequences are arranged so that both copies fit."""
        return packing

    def room(self, packing: Packing) -> dict[str, int]:
        """Half of the tokens."""
        return {self.name: packing.tokens // 2 + 1}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of what is written."""
        return token_loss(self.name, head, backbone, batch)
