"""Translation language modeling (Lample and Conneau, 2019, XLM): predict masked tokens of a text pair from both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.pretraining.masking import (
    check_positive_fractions,
    check_replacements,
    choose_masked,
    mask_tokens,
    max_masked,
)
from pretune.objectives.pretraining.parallel_text import ParallelText, check_attention, restart_positions
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class TLM(ParallelText, TokenPrediction):
    """Translation language modeling: tokens of a text and its translation are masked as in `mlm`.

    `text` and `pair` are columns of a table; `language_pair`, such as en-fr, is needed unless the names of files or
    columns give it.
    """

    mask_rate: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    language_pair: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "tlm"
    shared_head: ClassVar[str] = "mlm"  # tlm and mlm share one output layer

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, mask_rate=self.mask_rate)
        check_replacements(self.name, self.mask_replace_prob, self.random_replace_prob)
        super().__post_init__()

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Mask tokens of both texts, set the originals as targets, and restart the positions in the translation."""
        at = choose_masked(sequences, self.mask_rate, draws)
        original = mask_tokens(
            sequences, at, tokenizer, draws, masked=self.mask_replace_prob, swapped=self.random_replace_prob
        )
        sequences.targets[self.name] = (at, original)
        return restart_positions(sequences)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: one per masked token."""
        return {self.name: max_masked(packing, self.mask_rate)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new output layer over the vocabulary; raise an error for a model without full attention."""
        check_attention(self.name, backbone)
        return super().head(backbone)
