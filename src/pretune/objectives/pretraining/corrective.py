"""Corrective language modeling (Meng et al., 2021, COCO-LM, arXiv:2102.08473): predict the tokens that a generator has replaced.

In the sum `rtd+corrective`, the discriminator also predicts the original token wherever the generator has filled in one, so that the
same forward pass trains a language model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.pretraining.arrangements import ReadsDocuments
from pretune.objectives.pretraining.masking import max_masked
from pretune.objectives.pretraining.rtd import RTD, generator_term
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class Corrective(ReadsDocuments, TokenPrediction):
    """Corrective language modeling: predict the original tokens at the positions that the generator of `rtd` fills in.

    It is used in a sum with `rtd`, and reads the same text with replacements. `mask_rate` must be at least that of `rtd`. With
    `rtd(kept_masks=…)`, some of the positions are [MASK], so that the model also learns to fill in masked words.
    """

    mask_rate: float = 0.15

    name: ClassVar[str] = "corrective"
    shared_head: ClassVar[str] = "mlm"  # both predict tokens in place, with one output layer
    purpose: ClassVar[tuple[str, str]] = ("It is a language model that corrects replaced words", "fill-mask")
    pattern: ClassVar[Pattern | None] = full
    companion: ClassVar[str] = RTD.name
    corrupts_last: ClassVar[bool] = True  # after rtd has chosen the positions

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Set the original tokens at the positions that the generator fills in as prediction targets."""
        sequences.targets[self.name] = sequences.targets[generator_term(RTD.name)]
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: the tokens that the generator fills in."""
        return {self.name: max_masked(packing, self.mask_rate)}
