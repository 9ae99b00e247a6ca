"""Shuffling: the encoder reads the words or sentences of a text in another order, the decoder writes the text.

    I am happy to join with you today
    reads   today you am I join with happy to
    writes  I am happy to join with you today

Words within a window are Lample et al. (2018, arXiv:1711.00043); sentences are one of BART's kinds of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss, TwoSided, token_loss
from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.noise import reorder
from pretune.objectives.seq2seq.source_target import shapes, text_epoch, texts_of, two_sides
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class Shuffle(TwoSided):
    """Whole `words` or `sentences` move: anywhere in the text, or `window` places at most."""

    unit: Literal["words", "sentences"] = "words"
    window: int | None = None

    name: ClassVar[str] = "shuffle"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.unit not in ("words", "sentences"):
            raise PretuneError(f"shuffle(unit={self.unit}): it shuffles words or sentences")
        if self.window is not None and self.window < 1:
            raise PretuneError(f"shuffle(window={self.window}): nothing would move; give 1 or more, or leave it out")

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences."""
        return text_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Another order of the units; what is to be written is the text as it was."""
        texts = texts_of(sequences)
        begins = sequences.columns["word" if self.unit == "words" else "sentence"][~sequences.columns["special"]]
        noisy = reorder(texts, begins, draws, sequences.index, self.window)
        return two_sides(self.name, sequences, noisy, texts, tokenizer)

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """The same tokens on both."""
        whole = (packing.tokens, packing.length)
        return shapes(packing, whole, whole)

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy of the whole text."""
        return token_loss(self.name, head, backbone, batch)
