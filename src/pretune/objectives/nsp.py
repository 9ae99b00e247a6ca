"""Next sentence prediction (Devlin et al., 2019): does the second text follow the first, or is it from elsewhere?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.errors import PretuneError
from pretune.nn.patterns import Pattern
from pretune.objectives.arrangements import in_languages
from pretune.objectives.objective import Data, Loss
from pretune.objectives.pairs import PairHead, judge_at_start, neighbors, pair_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class NSP:
    """Half of the pairs are neighbors; the others get a second text from another document, never from the same.

    The second texts of the negatives change places among each other, so that every text is read once an epoch. A share
    `short` of the documents is read in shorter pairs.
    """

    negatives: float = 0.5
    short: float = 0.1

    name: ClassVar[str] = "nsp"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Spans cut in two at a random sentence bound."""
        begins, spans, documents = neighbors(self.name, data, packing, draws, self.short)
        assert data.store is not None
        negative = np.flatnonzero(draws.uniform("negative", begins[:, 0]) < self.negatives)
        spoken = data.store.document_languages[documents] if data.languages else np.zeros_like(documents)
        # Within each language: none is told by another one.
        groups = [negative[spoken[negative] == language] for language in np.unique(spoken)]
        exchanged = [exchange(group, documents, draws) for group in groups]
        partner, negative = (np.concatenate(side) for side in zip(*exchanged, strict=True))
        begins[negative, 1], spans[negative, 1] = begins[partner, 1], spans[partner, 1]
        # An exchanged second text may be too long for its new place: the end of the longer text gives way.
        room = packing.length - data.template.overhead(pair=True)
        over = np.maximum(0, spans.sum(1) - room)
        cut_second = np.minimum(over, np.maximum(spans[:, 1] - room // 2, 0))
        spans[:, 1] -= cut_second
        spans[:, 0] -= over - cut_second
        label = np.zeros(len(begins), dtype=np.int64)  # 0: it follows, as in BERT's released checkpoints
        label[negative] = 1
        arrangement = Arrangement(
            data.store,
            data.tokenizer,
            data.template,
            begins,
            spans,
            {
                "nsp": label,
                "first document": documents,
                "second document": second_documents(documents, negative, partner),
            },
            truncated=int((over > 0).sum()),
        )
        return plan_epoch(in_languages(arrangement, data, documents, draws), packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Nothing to hide: the label is the target, at the sequence's start."""
        return judge_at_start(self.name, sequences)

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler and two classes."""
        return PairHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the start tokens."""
        return pair_loss(self.name, head, backbone, batch)


def exchange(negative: Array, documents: Array, draws: Draws) -> tuple[Array, Array]:
    """For each negative another one, of another document, whose second text it takes; those without one are dropped."""
    if len(np.unique(documents[negative])) < 2:
        if len(np.unique(documents)) < 2:
            raise PretuneError("nsp needs two documents or more: its negatives never come from the same document")
        return negative[:0], negative[:0]
    order = negative[np.argsort(draws.uniform("exchange", negative), kind="stable")]
    # Sorted by document, half a turn apart, two places share a document only where that document has more than half.
    order = order[np.argsort(documents[order], kind="stable")]
    partner = np.roll(order, len(order) // 2)
    differs = documents[order] != documents[partner]
    return partner[differs], order[differs]


def second_documents(documents: Array, negative: Array, partner: Array) -> Array:
    """The document each second text comes from."""
    second = documents.copy()
    second[negative] = documents[partner]
    return second
