"""Masked language modeling (Devlin et al., 2019): predict tokens that were hidden, from both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.patterns import Pattern, full
from pretune.objectives.arrangements import spans_epoch
from pretune.objectives.masking import choose
from pretune.objectives.objective import Data, Loss, vocabulary_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone


@dataclass(frozen=True)
class MLM:
    """Masks anew each epoch. Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay.

    `rate` is the share of tokens chosen; with `final_rate` it moves there linearly over training.
    """

    rate: float = 0.15
    final_rate: float | None = None
    masked: float = 0.8
    swapped: float = 0.1
    whole_words: bool = False

    name: ClassVar[str] = "mlm"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = False
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide tokens; targets are the originals."""
        rate = self.rate
        if self.final_rate is not None:
            rate += (self.final_rate - self.rate) * draws.progress
        chosen = choose(sequences, rate, draws, self.whole_words)
        at = np.flatnonzero(chosen)
        original = sequences.ids[at]
        sequence, place = sequences.index[sequences.owner[at]], sequences.place[at]
        fate = draws.uniform("fate", sequence, place)
        plain = np.flatnonzero(~tokenizer.specials)  # random tokens are never special ones
        swaps = plain[draws.integers(len(plain), "swap", sequence, place)]
        sequences.ids[at] = np.where(
            fate < self.masked,
            tokenizer.role("mask"),
            np.where(fate < self.masked + self.swapped, swaps, original),
        )
        sequences.targets[self.name] = (at, original)
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """round(rate · length) of each sequence can add half a target each."""
        rate = max(self.rate, self.final_rate or 0.0)
        sequences = min(packing.sequences, packing.tokens)
        return {self.name: min(packing.tokens, int(rate * packing.tokens) + sequences // 2 + 1)}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the chosen positions alone."""
        targets = batch.targets[self.name]
        states = backbone(*batch.packed).last[targets.at]
        return vocabulary_loss(self.name, head, states, backbone.embed.tokens, targets)
