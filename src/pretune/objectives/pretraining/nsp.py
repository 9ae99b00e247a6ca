"""Next sentence prediction (Devlin et al., 2019): classify whether the second text follows the first."""

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
)
from pretune.objectives.registry import register_objective
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, plan_epoch


@register_objective
@dataclass(frozen=True)
class NSP(SequenceClassification):
    """Next sentence prediction: in a share `negative_rate` of the pairs, the second text is from another document.

    Text pairs of the same file whose second texts are about equally long are matched at random, two by two. Both second
    texts are truncated to the shorter length, and a share of the matched pairs exchange them, so that every text is
    read once per epoch and lengths do not reveal the label. Single sentences and text pairs that found no match have no
    label. A share `short_seq_prob` of the documents is cut into shorter text pairs.
    """

    negative_rate: float = 0.5
    short_seq_prob: float = 0.1

    name: ClassVar[str] = "nsp"
    classes: ClassVar[tuple[str, str]] = ("follows", "from elsewhere")

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into pairs of adjacent texts, and exchange the second texts of some pairs between documents."""
        begins, spans, documents = split_into_pairs(self.name, data, packing, draws, self.short_seq_prob)
        store = data.require_store(self.name)
        found = exchange_second_texts(
            self.name, store, begins, spans, documents, np.flatnonzero(spans[:, 1] > 0), draws, self.negative_rate
        )
        label = np.full(len(begins), UNLABELED)
        label[found.matched] = found.exchanged[found.matched]  # 0: the second text follows, as in BERT's checkpoints
        arrangement = Arrangement(
            store,
            data.tokenizer,
            data.template,
            begins,
            spans,
            {"nsp": label, "first document": documents, "second document": documents[found.second]},
            truncated=found.truncated,
        )
        return plan_epoch(resample_languages(arrangement, data, documents, draws), packing, draws)
