"""Shuffling: the encoder reads the words or sentences of a text in random order, the decoder writes the original.

    text    I am happy to join with you today
    source  today you am I join with happy to
    target  I am happy to join with you today

Shuffling words within a window follows Lample et al. (2018, arXiv:1711.00043); shuffling sentences is one of BART's kinds
of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pretune.objectives.registry import register_objective
from pretune.objectives.seq2seq.noise_functions import reorder
from pretune.objectives.seq2seq.source_target import Seq2Seq, make_source_and_target, strip_template
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Shuffle(Seq2Seq):
    """A denoising objective that shuffles words or sentences (`unit`), anywhere or by at most `window` positions."""

    unit: Literal["words", "sentences"] = "words"
    window: int | None = None

    name: ClassVar[str] = "shuffle"

    def __post_init__(self) -> None:
        if self.unit not in ("words", "sentences"):
            raise PretuneError(f"shuffle(unit={self.unit}): unknown unit; {suggest(self.unit, ('words', 'sentences'))}")
        if self.window is not None and self.window < 1:
            raise PretuneError(
                f"shuffle(window={self.window}): nothing would be shuffled; set window to 1 or more, or remove window to shuffle without a limit"
            )

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Shuffle the words or sentences of the source; the target is the original text."""
        texts = strip_template(sequences)
        begins = sequences.columns["word" if self.unit == "words" else "sentence"][~sequences.columns["special"]]
        noisy = reorder(texts, begins, draws, sequences.index, self.window)
        return make_source_and_target(self.name, sequences, noisy, texts, tokenizer)
