"""Language modeling: predict each token from the tokens before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data
from pretune.objectives.pretraining.arrangements import document_span_epoch
from pretune.objectives.pretraining.stateful_batches import stream_epoch
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class LM(TokenPrediction):
    """Left-to-right language modeling or, with `backward`, right-to-left language modeling (as in ULMFiT).

    With `stateful`, documents are read as contiguous streams, and each batch continues where the previous one ended.
    """

    stateful: bool = False
    backward: bool = False

    name: ClassVar[str] = "lm"
    purpose: ClassVar[tuple[str, str]] = ("It is a language model, which continues texts", "text-generation")
    pattern: ClassVar[Pattern | None] = causal

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences or, for stateful batches, into contiguous streams."""
        if self.stateful:
            return stream_epoch(data, packing, draws, backward=self.backward)
        return document_span_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the token that is read after each token as its target: the next or, with `backward`, the previous one."""
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

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary; raise an error if the model reads in the wrong direction."""
        if self.backward != getattr(backbone, "backward", False):
            direction, objective = ("backward", "lm(backward=true)") if not self.backward else ("forward", "lm")
            raise PretuneError(
                f"this model reads {direction}, but the objective predicts in the other direction; pretrain this model with {objective}"
            )
        return super().head(backbone)
