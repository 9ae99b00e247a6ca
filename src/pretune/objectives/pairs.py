"""Pairs of neighboring texts, which nsp and sop share: how they are arranged, and the head that judges them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from pretune.errors import PretuneError
from pretune.nn.linear import OutputLinear
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.arranging import cut_documents, split_at_sentence
from pretune.text.sequences import Packing, Sequences

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


class PairHead(nn.Module):
    """The family's pooler, then two classes."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.pooler = backbone.pooler()
        self.output = OutputLinear(backbone.width, 2)

    def forward(self, states: Tensor) -> Tensor:
        """(m, width) states of start tokens → (m, 2)."""
        return self.output(self.pooler(states))


def judge_at_start(name: str, sequences: Sequences) -> Sequences:
    """Nothing to hide: the label is the target, at the sequence's start."""
    sequences.targets[name] = (sequences.offsets[:-1], sequences.labels[name])
    return sequences


def pair_loss(name: str, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
    """Cross-entropy at the start tokens."""
    targets = batch.targets[name]
    return classification_loss(name, head(backbone(*batch.packed).last[targets.at]), targets)


def neighbors(name: str, data: Data, packing: Packing, draws: Draws, short: float) -> tuple[Array, Array, Array]:
    """Spans of documents cut in two at a random sentence bound: starts (m, 2), lengths (m, 2), documents (m,)."""
    if data.store is None:
        raise PretuneError(f"{name} reads raw text; give it a corpus or a store, not labeled rows")
    room = packing.length - data.template.overhead(pair=True)
    if room < 2:
        raise PretuneError(f"sequences of {packing.length} tokens leave no room for two texts; ask for longer ones")
    starts, lengths, documents = cut_documents(data.store, data.documents, room, draws, short)
    first = split_at_sentence(data.store, starts, lengths, draws)
    pairs = first > 0
    if not pairs.any():
        raise PretuneError(
            f"{name} needs documents of two sentences or more that fit into a sequence; this corpus has none"
        )
    starts, lengths, documents, first = starts[pairs], lengths[pairs], documents[pairs], first[pairs]
    return np.stack([starts, starts + first], axis=1), np.stack([first, lengths - first], axis=1), documents
