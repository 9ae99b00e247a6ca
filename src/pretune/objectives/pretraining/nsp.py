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
    exchange_groups,
    match_in_pairs,
    split_into_pairs,
)
from pretune.objectives.registry import register_objective
from pretune.runtime.errors import PretuneError
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
        pairs = np.flatnonzero(spans[:, 1] > 0)
        groups = exchange_groups(store.document_files, store.document_languages, documents[pairs])
        found = match_in_pairs(spans[pairs, 1], groups, documents[pairs], draws)
        partner = np.full(len(begins), -1)
        partner[pairs] = np.where(found >= 0, pairs[found], -1)
        matched = np.flatnonzero(partner >= 0)
        if not len(matched):
            raise PretuneError(
                "the objective nsp needs two documents or more, because negatives come from another document; give it more documents"
            )
        shorter = np.minimum(spans[matched, 1], spans[partner[matched], 1])
        cut = int((shorter < spans[matched, 1]).sum())
        spans[matched, 1] = shorter
        label = np.full(len(begins), UNLABELED)
        # One draw per match. 0 means that the second text follows, as in BERT's released checkpoints.
        label[matched] = draws.uniform("negative", np.minimum(matched, partner[matched])) < self.negative_rate
        second = np.where(label == 1, partner, np.arange(len(begins)))
        begins[:, 1] = begins[second, 1]
        arrangement = Arrangement(
            store,
            data.tokenizer,
            data.template,
            begins,
            spans,
            {"nsp": label, "first document": documents, "second document": documents[second]},
            truncated=cut,
        )
        return plan_epoch(resample_languages(arrangement, data, documents, draws), packing, draws)
