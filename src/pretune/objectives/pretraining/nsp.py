"""Next sentence prediction (Devlin et al., 2019): does the second text follow the first, or is it from elsewhere?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.objectives.objective import Data, Loss, Objective
from pretune.objectives.pretraining.arrangements import in_languages
from pretune.objectives.pretraining.sentence_pairs import (
    UNLABELED,
    PairHead,
    judge_at_start,
    match_two_by_two,
    neighbors,
    pair_loss,
    source_groups,
)
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class NSP(Objective):
    """Half of the pairs are neighbors; the others have a second text from another document of the same source.

    Pairs are matched two by two, at random among those of a source whose second texts are about equally long; both second
    texts are cut to the shorter one's length; and a share `negatives` of the matches exchange them. So every text is read
    once per epoch, but for the few tokens cut, and label and lengths are independent. Single sentences, and pairs without a
    match, such as those of a source of one document, are read but not judged. A share `short` of the documents is read in
    shorter pairs.
    """

    negatives: float = 0.5
    short: float = 0.1

    name: ClassVar[str] = "nsp"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Cut spans of documents in two at a random sentence bound, and exchange second texts."""
        begins, spans, documents = neighbors(self.name, data, packing, draws, self.short)
        assert data.store is not None
        pairs = np.flatnonzero(spans[:, 1] > 0)
        groups = source_groups(data.store.document_files, data.store.document_languages, documents[pairs])
        found = match_two_by_two(spans[pairs, 1], groups, documents[pairs], draws)
        partner = np.full(len(begins), -1)
        partner[pairs] = np.where(found >= 0, pairs[found], -1)
        matched = np.flatnonzero(partner >= 0)
        if not len(matched):
            raise PretuneError("nsp needs two documents or more: its negatives never come from the same document")
        shorter = np.minimum(spans[matched, 1], spans[partner[matched], 1])
        cut = int((shorter < spans[matched, 1]).sum())
        spans[matched, 1] = shorter
        label = np.full(len(begins), UNLABELED)
        # One draw for each match; 0: it follows, as in BERT's released checkpoints
        label[matched] = draws.uniform("negative", np.minimum(matched, partner[matched])) < self.negatives
        second = np.where(label == 1, partner, np.arange(len(begins)))
        begins[:, 1] = begins[second, 1]
        arrangement = Arrangement(
            data.store,
            data.tokenizer,
            data.template,
            begins,
            spans,
            {"nsp": label, "first document": documents, "second document": documents[second]},
            truncated=cut,
        )
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
