"""Next sentence prediction (Devlin et al., 2019): does the second text follow the first, or is it from elsewhere?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from pretune.errors import PretuneError
from pretune.nn.linear import Linear
from pretune.nn.patterns import Pattern
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.arranging import cut_documents, split_at_sentence
from pretune.text.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


class PairHead(nn.Module):
    """The family's pooler, then two classes."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.pooler = backbone.pooler()
        self.output = Linear(backbone.width, 2)

    def forward(self, states: Tensor) -> Tensor:
        """(m, width) states of start tokens → (m, 2)."""
        return self.output(self.pooler(states))


@dataclass(frozen=True)
class NSP:
    """Half of the pairs are neighbors; the others get a second text from another document, never from the same.

    The second texts of the negatives change places among each other, so that every text is read once an epoch.
    """

    negatives: float = 0.5

    name: ClassVar[str] = "nsp"
    pattern: ClassVar[Pattern | None] = None
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Spans cut in two at a random sentence bound."""
        if data.store is None:
            raise PretuneError("nsp reads raw text; give it a corpus or a store, not labeled rows")
        room = packing.length - data.template.overhead(pair=True)
        if room < 2:
            raise PretuneError(f"sequences of {packing.length} tokens leave no room for two texts; ask for longer ones")
        starts, lengths, documents = cut_documents(data.store, data.documents, room, draws)
        first = split_at_sentence(data.store, starts, lengths, draws)
        pairs = first > 0
        if not pairs.any():
            raise PretuneError(
                "nsp needs documents of two sentences or more that fit into a sequence; this corpus has none"
            )
        starts, lengths, documents, first = starts[pairs], lengths[pairs], documents[pairs], first[pairs]
        spans = np.stack([first, lengths - first], axis=1)
        begins = np.stack([starts, starts + first], axis=1)
        negative = np.flatnonzero(draws.uniform("negative", starts) < self.negatives)
        partner, negative = exchange(negative, documents, draws)
        begins[negative, 1], spans[negative, 1] = begins[partner, 1], spans[partner, 1]
        # An exchanged second text may be too long for its new place: the end of the longer text gives way.
        over = np.maximum(0, spans.sum(1) - room)
        cut_second = np.minimum(over, np.maximum(spans[:, 1] - room // 2, 0))
        spans[:, 1] -= cut_second
        spans[:, 0] -= over - cut_second
        label = np.zeros(len(starts), dtype=np.int64)  # 0: it follows, as in BERT's released checkpoints
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
        return plan_epoch(arrangement, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Nothing to hide: the label is the target, at the sequence's start."""
        sequences.targets[self.name] = (sequences.offsets[:-1], sequences.labels["nsp"])
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """One target a sequence."""
        return {self.name: min(packing.sequences, packing.tokens)}

    def head(self, backbone: Backbone) -> nn.Module:
        """Pooler and two classes."""
        return PairHead(backbone)

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the start tokens."""
        targets = batch.targets[self.name]
        states = backbone(*batch.packed).last[targets.at]
        return classification_loss(self.name, head(states), targets)


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
