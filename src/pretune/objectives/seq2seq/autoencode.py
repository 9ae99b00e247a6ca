"""Sequence autoencoding (Dai and Le, 2015, Semi-supervised Sequence Learning): read a text, then predict the same text.

A single stack does both: its state encodes the text that it has read, and the loss is on the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import AddsTokens, Data
from pretune.objectives.pretraining.arrangements import arrange_document_spans
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, PlannedEpoch, Sequences, plan_lengths
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Autoencode(TokenPrediction, AddsTokens):
    """Sequence autoencoding: every sequence is read twice, and the second copy is predicted from the first."""

    name: ClassVar[str] = "autoencode"
    pattern: ClassVar[Pattern | None] = causal
    owns_arrangement: ClassVar[bool] = True

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences, at most half as long as a sequence, so that two copies fit."""
        arrangement = arrange_document_spans(data, packing.length // 2, draws)
        return PlannedEpoch(arrangement, plan_lengths(2 * arrangement.lengths, packing, draws))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Repeat every sequence, and set the tokens of the second copy as prediction targets."""
        starts, lengths = sequences.offsets[:-1], sequences.lengths
        order = span_indices(np.repeat(starts, 2), np.repeat(lengths, 2))
        columns = {name: column[order] for name, column in sequences.columns.items()}
        made = Sequences(sequences.ids[order], 2 * lengths, sequences.index, columns, pattern=self.pattern)
        at = span_indices(made.offsets[:-1] + lengths - 1, lengths)
        made.targets[self.name] = (at, made.ids[at + 1])
        return made

    def max_packing(self, packing: Packing) -> Packing:
        """Return the batch limits `packing` unchanged, because texts are cut so that both of their copies fit."""
        return packing

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: half of the tokens."""
        return {self.name: packing.tokens // 2 + 1}
