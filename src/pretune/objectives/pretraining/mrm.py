"""Masked region modeling (Lu et al., 2019, ViLBERT): predict what a detector saw in hidden regions of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.two_streams import TwoStreamOutput, require_two_streams
from pretune.objectives.objective import Loss
from pretune.objectives.pretraining.image_text import ImageText
from pretune.objectives.pretraining.masking import check_positive_fractions, mask_counts
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.region_sequences import with_mean_features
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

KEPT = 0.1  # the share of the chosen regions that keep their features


@register_objective
@dataclass(frozen=True)
class MRM(ImageText):
    """Masked region modeling: the class probabilities that a detector gave to a region are predicted without its features.

    A share `mask_rate` of the regions of each image, at least one, is chosen; 90 % of them lose their features, and 10 % keep them. The loss is the
    Kullback-Leibler divergence from the predicted to the detector's probabilities.
    """

    mask_rate: float = 0.15

    name: ClassVar[str] = "mrm"
    corrupts_last: ClassVar[bool] = True  # after `itm`, which exchanges images

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, mask_rate=self.mask_rate)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Hide the features of some regions, and set the detector's probabilities of classes as targets."""
        regions = sequences.second
        assert regions is not None
        if "classes" not in regions.columns:
            raise PretuneError(
                "mrm needs the class probabilities of the detector for all images: the column cls_prob of a .tsv file, or "
                "ID.classes.npy beside ID.npy; extract them too, or pretrain with mlm+itm"
            )
        at = choose_regions(regions, sequences.index, self.mask_rate, draws)
        place = (sequences.index[regions.owner[at]], regions.index_in_sequence[at])
        hidden = np.zeros(len(regions.ids), dtype=bool)
        hidden[at] = draws.uniform("hide region", *place) >= KEPT
        regions.columns["features"][hidden] = 0.0
        # The image as a whole must not show what is hidden.
        with_mean_features(regions, hidden)
        sequences.targets[self.name] = (at, regions.columns["classes"][at])
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: one per region."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """Return a new head that predicts the class of regions; raise an error for a model that reads no images."""
        return require_two_streams(self.name, backbone).region_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Return the divergence from the predicted to the detector's class probabilities, summed over chosen regions."""
        targets = batch.targets[self.name]
        states = backbone(*batch.packed)
        assert isinstance(states, TwoStreamOutput) and states.regions is not None
        logits = head(states.regions[targets.at]).float()
        if targets.target.dim() == 1 or logits.shape[1] != targets.target.shape[1]:
            raise PretuneError(
                f"the images have probabilities of {targets.target.shape[-1]} classes, and the model predicts {logits.shape[1]}; "
                "use the detector that the model was trained with"
            )
        losses = F.kl_div(logits.log_softmax(-1), targets.target, reduction="none").sum(-1)
        right = (logits.argmax(-1) == targets.target.argmax(-1)).float()
        logs = {f"{self.name}/accuracy": (right * targets.weight).sum().detach()}
        return Loss(sums={self.name: (losses * targets.weight).sum()}, logs=logs)

    def describe_target(self, at: Array, target: Array, ids: Array, spell: Callable[[Array], str]) -> str | None:
        """Return the most probable classes of the chosen regions as text, such as "region 2: class 7"."""
        pairs = zip(at, target.argmax(-1), strict=True)
        return ", ".join(f"region {place}: class {number}" for place, number in pairs)


def choose_regions(regions: Sequences, index: Array, rate: float, draws: EpochRandom) -> Array:
    """Return the sorted indices of about a share `rate` of the regions of each image, at least one of them.

    `index` (images,) seeds the random choice for each image. The image as a whole is never chosen.
    """
    free = np.flatnonzero(~regions.columns["special"])
    owner = regions.owner[free]
    order = np.lexsort((draws.random_bits("region", index[owner], regions.index_in_sequence[free]), owner))
    bounds = np.searchsorted(owner, np.arange(len(regions.lengths) + 1))
    wanted = mask_counts(rate, np.diff(bounds))
    chosen: Array = np.sort(free[order[span_indices(bounds[:-1], wanted)]])
    return chosen
