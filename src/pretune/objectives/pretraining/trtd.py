"""Translation replaced token detection (Chi et al., 2021, XLM-E): `rtd` over a text and its translation in one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.pretraining.masking import check_positive_fractions
from pretune.objectives.pretraining.parallel_text import ParallelText, check_attention, restart_positions
from pretune.objectives.pretraining.rtd import RTD
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class TRTD(ParallelText, RTD):
    """Replaced token detection on texts that are each paired with a translation.

    If it is trained together with `rtd`, both use the same generator.
    """

    language_pair: str = ""
    text: str = ""
    pair: str = ""

    name: ClassVar[str] = "trtd"
    shared_head: ClassVar[str] = "rtd"  # rtd and trtd share one generator and one discriminator

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, mask_rate=self.mask_rate, generator_size=self.generator_size)
        super().__post_init__()

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Mask tokens of a text and its translation for the generator, and restart the positions in the second text."""
        return restart_positions(super().corrupt(sequences, tokenizer, draws))

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new generator and the output layers of the discriminator.

        Raise an error for a model without full attention.
        """
        check_attention(self.name, backbone)
        return super().head(backbone)
