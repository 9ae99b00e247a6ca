"""Sentence order prediction (Lan et al., 2020, ALBERT): classify whether two adjacent texts are in order or swapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data
from pretune.objectives.pretraining.arrangements import resample_languages
from pretune.objectives.pretraining.sentence_pairs import (
    UNLABELED,
    SequenceClassification,
    split_into_pairs,
    starts_sentence,
    swap_texts,
)
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch


@register_objective
@dataclass(frozen=True)
class SOP(SequenceClassification):
    """Sentence order prediction: classify pairs of adjacent texts, a share `swap_rate` of which is swapped.

    Single sentences have no label. Pairs that start inside a sentence have no label either, because such a start would
    reveal which text comes first. A share `short_seq_prob` of the documents is cut into shorter pairs.
    """

    swap_rate: float = 0.5
    short_seq_prob: float = 0.1

    name: ClassVar[str] = "sop"
    classes: ClassVar[tuple[str, str]] = ("in order", "swapped")

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut spans of documents into two texts at a random sentence boundary, and swap the texts of some pairs."""
        begins, spans, documents = split_into_pairs(self.name, data, packing, draws, self.short_seq_prob)
        store = data.require_store(self.name)
        labeled = (spans[:, 1] > 0) & starts_sentence(store, begins[:, 0])
        swapped = labeled & (draws.uniform("swapped", begins[:, 0]) < self.swap_rate)
        swap_texts(swapped, begins, spans)
        labels = {self.name: np.where(labeled, swapped, UNLABELED)}  # 0: in order, as in ALBERT's released checkpoints
        arrangement = Arrangement(store, data.tokenizer, data.template, begins, spans, labels)
        return plan_epoch(resample_languages(arrangement, data, documents, draws), packing, draws)
