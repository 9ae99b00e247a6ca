"""Language modeling: predict each token from those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Loss, Objective, token_loss
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.pretraining.stateful_batches import lanes_epoch
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class LM(Objective):
    """Left to right. With `stateful`, texts come in lanes and each batch goes on where the one before ended.

    With `backward`, right to left, in a model that reads so (the second half of ULMFiT).
    """

    stateful: bool = False
    backward: bool = False

    name: ClassVar[str] = "lm"
    pattern: ClassVar[Pattern | None] = causal
    insists: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences, or in lanes."""
        if self.stateful:
            return lanes_epoch(data, packing, draws, backward=self.backward)
        return spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Targets are the tokens read next; the last of a sequence has none, unless the arrangement knows it."""
        if "next" in sequences.columns:
            following = sequences.columns["next"]
            at = np.flatnonzero(following >= 0)
            sequences.targets[self.name] = (at, following[at])
        else:
            last = np.zeros(len(sequences.ids), dtype=bool)
            last[sequences.offsets[:-1] if self.backward else sequences.offsets[1:] - 1] = True
            at = np.flatnonzero(~last)
            sequences.targets[self.name] = (at, sequences.ids[at - 1 if self.backward else at + 1])
        sequences.pattern = self.pattern
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token but the last of a sequence."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        if self.backward != getattr(backbone, "backward", False):
            reads, asks = ("backward", "lm(backward=true)") if not self.backward else ("forward", "lm")
            raise PretuneError(f"this model reads {reads}; pretrain it with {asks}")
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at every token that has a next one."""
        return token_loss(self.name, head, backbone, batch)
