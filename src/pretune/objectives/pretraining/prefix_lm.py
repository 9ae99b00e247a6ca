"""Prefix language modeling (Raffel et al., 2020; UniLM, Dong et al., 2019): predict the rest of a text from its prefix.

    text     I am happy to join with you today
    prefix   I am happy to            (attends in both directions)
    predict  join with you today      (each token from all tokens before it)

A single stack reads the prefix and predicts the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import Pattern, prefix
from pretune.objectives.pretraining.arrangements import ReadsDocuments
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import segment_sum
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class PrefixLM(ReadsDocuments, TokenPrediction):
    """Prefix language modeling: each text is cut at a random position, and the rest, with the end token, is predicted."""

    name: ClassVar[str] = "prefix"
    pattern: ClassVar[Pattern | None] = prefix

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Choose a random prefix of each text, and set the tokens after it as targets.

        The column `prefix` of the sequences marks the prefix, whose tokens attend to each other in both directions.
        """
        lengths, special = sequences.lengths, sequences.columns["special"]
        first = np.minimum.reduceat(
            np.where(special, lengths.max(initial=0), sequences.index_in_sequence), sequences.offsets[:-1]
        )
        text = segment_sum(~special, lengths)
        # At least one token of the text is on either side, if the text has two.
        cut = first + np.minimum(1, text - 1) + draws.integers(np.maximum(1, text - 1), "cut", sequences.index)
        cut = np.repeat(np.clip(cut, 1, lengths), lengths)
        place = sequences.index_in_sequence
        sequences.columns["prefix"] = (place < cut).astype(np.int64)
        at = np.flatnonzero((place >= cut - 1) & (place < np.repeat(lengths, lengths) - 1))
        sequences.targets[self.name] = (at, sequences.ids[at + 1])
        sequences.pattern = self.pattern
        sequences.second = None  # a single stack reads both parts
        return sequences
