"""Sentence order prediction (Lan et al., 2020, ALBERT): do two neighboring texts stand in their order, or swapped?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss, Objective
from pretune.objectives.pretraining.arrangements import in_languages
from pretune.objectives.pretraining.sentence_pairs import UNLABELED, PairHead, judge_at_start, neighbors, pair_loss
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class SOP(Objective):
    """Two texts that follow one another in a document; a share `swapped` of the pairs comes the other way round.

    Both are of one document, so that the topic says nothing about the label. Single sentences are read but not judged, and so
    are pairs that begin inside a sentence, with the rest of one longer than a sequence: only first texts can begin so. A share
    `short` of the documents is read in shorter pairs.
    """

    swapped: float = 0.5
    short: float = 0.1

    name: ClassVar[str] = "sop"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Cut spans of documents in two at a random sentence bound, and swap the texts of some."""
        begins, spans, documents = neighbors(self.name, data, packing, draws, self.short)
        assert data.store is not None
        sentences = data.store.sentence_offsets
        judged = (spans[:, 1] > 0) & (sentences[np.searchsorted(sentences, begins[:, 0])] == begins[:, 0])
        swapped = judged & (draws.uniform("swapped", begins[:, 0]) < self.swapped)
        for pairs in (begins, spans):
            pairs[swapped] = pairs[swapped, ::-1]
        labels = {self.name: np.where(judged, swapped, UNLABELED)}  # 0: in order, as in ALBERT's released checkpoints
        arrangement = Arrangement(data.store, data.tokenizer, data.template, begins, spans, labels)
        return plan_epoch(in_languages(arrangement, data, documents, draws), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Make the label the target at the start of each labeled sequence."""
        return judge_at_start(self.name, sequences)

    def room(self, packing: Packing) -> dict[str, int]:
        """At most one target per sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler and two classes."""
        return PairHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the start tokens."""
        return pair_loss(self.name, head, backbone, batch)
