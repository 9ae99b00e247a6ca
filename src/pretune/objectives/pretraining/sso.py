"""Sentence structural objective (Wang et al., 2019, StructBERT, arXiv:1908.04577): classify how two texts are related."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data
from pretune.objectives.pretraining.arrangements import resample_languages
from pretune.objectives.pretraining.sentence_pairs import (
    UNLABELED,
    SequenceClassification,
    exchange_second_texts,
    split_into_pairs,
    starts_sentence,
    swap_texts,
)
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch

NEXT, PREVIOUS, OTHER = 0, 1, 2


@register_objective
@dataclass(frozen=True)
class SSO(SequenceClassification):
    """Sentence structural objective: the second text follows the first, precedes it, or is from another document.

    A share `swap_rate` of the pairs of adjacent texts is swapped. Then pairs are matched as in nsp: both second texts
    are truncated to the shorter length, and a share `negative_rate` of the matched pairs exchange them. Pairs that
    start inside a sentence, single sentences and pairs without a match have no label. A share `short_seq_prob` of the
    documents is cut into shorter pairs.
    """

    negative_rate: float = 1 / 3
    swap_rate: float = 0.5
    short_seq_prob: float = 0.1

    name: ClassVar[str] = "sso"
    classes: ClassVar[tuple[str, ...]] = ("next", "previous", "from elsewhere")

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into pairs of adjacent texts, swap some, and exchange the second texts of others."""
        begins, spans, documents = split_into_pairs(self.name, data, packing, draws, self.short_seq_prob)
        store = data.require_store(self.name)
        usable = (spans[:, 1] > 0) & starts_sentence(store, begins[:, 0])
        swapped = usable & (draws.uniform("swapped", begins[:, 0]) < self.swap_rate)
        swap_texts(swapped, begins, spans)
        found = exchange_second_texts(
            self.name, store, begins, spans, documents, np.flatnonzero(usable), draws, self.negative_rate
        )
        label = np.full(len(begins), UNLABELED)
        label[found.matched] = np.where(swapped, PREVIOUS, NEXT)[found.matched]
        label[found.exchanged] = OTHER
        swap_texts(swapped & (label == UNLABELED), begins, spans)  # texts without a label are read in their order
        labels = {self.name: label, "first document": documents, "second document": documents[found.second]}
        arrangement = Arrangement(
            store, data.tokenizer, data.template, begins, spans, labels, truncated=found.truncated
        )
        return plan_epoch(resample_languages(arrangement, data, documents, draws), packing, draws)
