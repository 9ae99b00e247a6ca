"""Prefix language modeling with an encoder-decoder (Raffel et al., 2020): the decoder continues what the encoder reads.

text    I am happy to join with you today
source  I am happy to
target  join with you today

The objective `prefix` does the same with a single stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import segment_starts, segment_sum
from pretune.objectives.seq2seq.source_target import FlatTexts, Seq2Seq, make_source_and_target, strip_template
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class PrefixSeq2Seq(Seq2Seq):
    """Prefix language modeling: each text is cut at a random position, and the decoder generates the rest."""

    name: ClassVar[str] = "prefix_seq2seq"

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Cut each text at a random position; the source is the text before it, and the target the text after it.

        Both have at least one token, unless the text has only one, which becomes the target.
        """
        texts = strip_template(sequences)
        lengths = texts.lengths
        cut = np.minimum(1, lengths - 1) + draws.integers(np.maximum(1, lengths - 1), "cut", sequences.index)
        place = np.arange(len(texts.ids)) - np.repeat(segment_starts(lengths), lengths)
        before = place < np.repeat(cut, lengths)
        source, target = (FlatTexts(texts.ids[part], segment_sum(part, lengths)) for part in (before, ~before))
        return make_source_and_target(self.name, sequences, source, target, tokenizer)
