"""Image-text matching, or alignment prediction (Lu et al., 2019, ViLBERT): does a text describe the image?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.two_streams import PairPooler, TwoStreamOutput, require_two_streams
from pretune.nn.dropout import Dropout
from pretune.nn.linear import OutputLinear
from pretune.objectives.objective import Loss, classification_loss
from pretune.objectives.pretraining.image_text import ImageText
from pretune.objectives.pretraining.masking import check_positive_fractions
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.region_sequences import reorder_images
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

MATCHES, DIFFERS = 0, 1  # the classes, in the order of the published output layer


class MatchingHead(nn.Module):
    """A head that computes two logits per pair of a text and an image, from the product of both pooled."""

    def __init__(self, pooler: PairPooler, dropout: float) -> None:
        super().__init__()
        self.pooler, self.dropout = pooler, Dropout(dropout)
        self.output = OutputLinear(pooler.width, 2)

    def forward(self, states: TwoStreamOutput, batch: Batch) -> Tensor:
        """Return logits, (sequences, 2), from the hidden states of texts and regions."""
        logits: Tensor = self.output(self.dropout(self.pooler(states, *batch.packed)))
        return logits


@register_objective
@dataclass(frozen=True)
class ITM(ImageText):
    """Image-text matching: a share `negative_rate` of the texts exchange images, and these pairs are to be found.

    The images are those of other texts of the same batch. A text that gets the image that it had still matches.
    """

    negative_rate: float = 0.5
    dropout: float = 0.1

    name: ClassVar[str] = "itm"
    demonstration_sequences: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, negative_rate=self.negative_rate)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Exchange the images of some texts, and set whether each text matches its image as the target."""
        assert sequences.second is not None
        before = sequences.second.labels["image"]
        exchanged = np.flatnonzero(draws.uniform("exchange image", sequences.index) < self.negative_rate)
        # In a circle in random order, so that each of the texts gets the image of another one.
        exchanged = exchanged[np.argsort(draws.random_bits("image", sequences.index[exchanged]), kind="stable")]
        order = np.arange(len(before))
        order[exchanged] = np.roll(exchanged, 1)
        sequences.second = reorder_images(sequences.second, order)
        differs = sequences.second.labels["image"] != before
        sequences.targets[self.name] = (np.arange(len(order)), np.where(differs, DIFFERS, MATCHES))
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: one per text."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new head with two classes; raise an error for a model that reads no images."""
        return MatchingHead(require_two_streams(self.name, backbone).pair_pooler(), self.dropout)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the cross-entropy of whether each text matches its image."""
        targets = batch.targets[self.name]
        logits = head(backbone(*batch.packed), batch)
        return classification_loss(self.name, logits[targets.at], targets)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return "matches" or "another image" for each text, separated by commas."""
        return ", ".join("matches" if label == MATCHES else "another image" for label in target)
