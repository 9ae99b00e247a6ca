"""MASS (Song et al., 2019): the encoder reads a text with a masked fragment, the decoder writes the fragment.

text     I am happy to join with you today
source   I am [MASK] [MASK] [MASK] with you today
decoder  [MASK] happy to                (with the positions of the fragment in the text)
target   happy to join
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import causal
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import segment_starts
from pretune.objectives.seq2seq.source_target import Seq2Seq, check_fraction, side_packings, strip_template
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class MASS(Seq2Seq):
    """MASS: a contiguous fragment, a share `mask_rate` of each text, is masked and predicted.

    In the encoder's input, the share `mask_replace_prob` of the fragment becomes [MASK], and `random_replace_prob`
    random tokens. The decoder does not see the rest of the text: its other inputs are masked or, with
    `trim_decoder_input`, left out, as in the paper. Positions are those of the text either way.
    """

    mask_rate: float = 0.5
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    trim_decoder_input: bool = True

    name: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        check_fraction(self.name, "mask_rate", self.mask_rate)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Choose a fragment of each text, mask it in the source, and make it the decoder's target."""
        mask, lengths = tokenizer.role("mask"), strip_template(sequences).lengths
        size = self.sizes(lengths)
        begins = np.flatnonzero(~sequences.columns["special"])[segment_starts(lengths)]
        begins = begins + draws.integers(lengths - size + 1, "fragment", sequences.index)
        at = span_indices(begins, size)
        original = sequences.ids[at]
        decoder = np.full(len(sequences.ids), mask, dtype=np.int64)
        decoder[at] = np.concatenate([[mask], original[:-1]])
        decoder[begins] = mask  # the first token is predicted from the source alone
        place = sequences.index_in_sequence
        if self.trim_decoder_input:
            second = Sequences(decoder[at], size, sequences.index, positions=place[at], pattern=causal)
            second.targets[self.name] = (np.arange(len(at)), original)
        else:
            second = Sequences(decoder, sequences.lengths, sequences.index, pattern=causal)
            second.targets[self.name] = (at, original)
        sequence = np.repeat(sequences.index, size)
        fate = draws.uniform("fate", sequence, place[at])
        plain = np.flatnonzero(~tokenizer.specials)
        swaps = plain[draws.integers(len(plain), "swap", sequence, place[at])]
        ids = sequences.ids.copy()
        ids[at] = np.where(
            fate < self.mask_replace_prob,
            mask,
            np.where(fate < self.mask_replace_prob + self.random_replace_prob, swaps, original),
        )
        return Sequences(ids, sequences.lengths, sequences.index, second=second)

    def sizes(self, lengths: Array) -> Array:
        """Return the number of tokens in the masked fragment of each text, (b,), given the texts' `lengths` (b,)."""
        return np.maximum(1, np.round(self.mask_rate * lengths)).astype(np.int64)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the batch limits of source and target; with `trim_decoder_input`, targets are only the fragments."""
        whole = (packing.tokens, packing.length)
        if not self.trim_decoder_input:
            return side_packings(packing, whole, whole)
        written = self.mask_rate * packing.tokens + min(packing.sequences, packing.tokens)
        longest = int(self.sizes(np.array([packing.length]))[0])
        return side_packings(packing, whole, (min(packing.tokens, written), longest))

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: the tokens of all masked fragments."""
        written = self.mask_rate * packing.tokens + min(packing.sequences, packing.tokens)
        return {self.name: int(min(packing.tokens, written))}
