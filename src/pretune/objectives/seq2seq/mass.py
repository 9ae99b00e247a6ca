"""MASS (Song et al., 2019): the encoder reads a text with a fragment masked, the decoder writes the fragment.

I am happy to join with you today
reads   I am [MASK] [MASK] [MASK] with you today
writes      happy to join       from   [MASK] happy to, at the places they have in the text
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, causal
from pretune.objectives.objective import Data, Loss, TwoSided, token_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import starts_of
from pretune.objectives.seq2seq.source_target import check_share, shapes, text_epoch, texts_of
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.store.store import spans_to_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class Mass(TwoSided):
    """`share` of each text in one piece. Of its tokens 80 % are masked for the encoder, 10 % swapped, 10 % left, as BERT's.

    What the decoder does not have to write it does not read: such inputs are masked, or with `removed` not there at all,
    which halves its cost and is what the paper did. Positions are those of the text either way.
    """

    share: float = 0.5
    masked: float = 0.8
    swapped: float = 0.1
    removed: bool = True

    name: ClassVar[str] = "mass"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_share(self.name, "share", self.share)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return text_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Choose a fragment of each text, mask it on one side and write it on the other."""
        mask, lengths = tokenizer.role("mask"), texts_of(sequences).lengths
        size = self.sizes(lengths)
        begins = np.flatnonzero(~sequences.columns["special"])[starts_of(lengths)]
        begins = begins + draws.integers(lengths - size + 1, "fragment", sequences.index)
        at = spans_to_indices(begins, size)
        original = sequences.ids[at]
        decoder = np.full(len(sequences.ids), mask, dtype=np.int64)
        decoder[at] = np.concatenate([[mask], original[:-1]])
        decoder[begins] = mask  # the first is written from nothing but the source
        place = sequences.place
        if self.removed:
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
        ids[at] = np.where(fate < self.masked, mask, np.where(fate < self.masked + self.swapped, swaps, original))
        return Sequences(ids, sequences.lengths, sequences.index, second=second)

    def sizes(self, lengths: Array) -> Array:
        """(b,) tokens of each text's fragment."""
        return np.maximum(1, np.round(self.share * lengths)).astype(np.int64)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """The decoder's side has the fragments alone, if the rest is removed."""
        whole = (packing.tokens, packing.length)
        if not self.removed:
            return shapes(packing, whole, whole)
        written = self.share * packing.tokens + min(packing.sequences, packing.tokens)
        longest = int(self.sizes(np.array([packing.length]))[0])
        return shapes(packing, whole, (min(packing.tokens, written), longest))

    def room(self, packing: Packing) -> dict[str, int]:
        """The fragments."""
        written = self.share * packing.tokens + min(packing.sequences, packing.tokens)
        return {self.name: int(min(packing.tokens, written))}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of the fragments."""
        return token_loss(self.name, head, backbone, batch)
