"""What nsp, sop and dlm share: pairs of neighboring texts, exchanges that give no label away, and the head that judges them.

The label must follow from what the texts say, and from nothing else. So negatives are made by exchanging texts between two
sequences of the same source, and both texts are cut to the same length, whether they are exchanged or not: neither the
lengths, nor where a text begins and ends, nor the source says anything about the label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from pretune.nn.linear import OutputLinear
from pretune.objectives.objective import Data, Loss, classification_loss
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.document_spans import cut_documents, split_at_sentence
from pretune.text.packing.sequences import Packing, Sequences

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

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


UNLABELED = -1  # the label of a sequence that is read, but not judged
PATIENCE = 4  # rounds of matching without a match before those left are given up


def judge_at_start(name: str, sequences: Sequences) -> Sequences:
    """Make the label the target at the start of each labeled sequence; nothing is hidden."""
    labels = sequences.labels[name]
    labeled = labels != UNLABELED
    sequences.targets[name] = (sequences.offsets[:-1][labeled], labels[labeled])
    return sequences


def pair_loss(name: str, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
    """Cross-entropy at the start tokens."""
    targets = batch.targets[name]
    return classification_loss(name, head(backbone(*batch.packed).last[targets.at]), targets)


def neighbors(name: str, data: Data, packing: Packing, draws: Draws, short: float) -> tuple[Array, Array, Array]:
    """Return spans of documents, cut in two at a random sentence bound: starts (m, 2), lengths (m, 2), documents (m,).

    A span of one sentence, next to which no other fits, is a first text without a second, of length 0.
    """
    if data.store is None:
        raise PretuneError(f"{name} reads raw text; give it a corpus or a store, not labeled rows")
    room = packing.length - data.template.overhead(pair=True)
    if room < 2:
        raise PretuneError(f"sequences of {packing.length} tokens leave no room for two texts; ask for longer ones")
    starts, lengths, documents = cut_documents(data.store, data.documents, room, draws, short, from_both_ends=True)
    first = split_at_sentence(data.store, starts, lengths, draws)
    if not first.any():
        raise PretuneError(
            f"{name} needs documents of two sentences or more that fit into a sequence; this corpus has none"
        )
    begins = np.stack([starts, starts + first], axis=1)
    first = np.where(first > 0, first, lengths)
    return begins, np.stack([first, lengths - first], axis=1), documents


def source_groups(files: Array, languages: Array, documents: Array) -> Array:
    """Return the group (m,) within which the second texts of m sequences are exchanged, given the document of each.

    `files` and `languages` (documents,) are those of all documents. A group is a file; files of which one document is read
    make up one group for each language, or a folder of such files would have no negatives.

    >>> source_groups(np.array([0, 0, 1, 2]), np.zeros(4, dtype=int), np.array([0, 0, 1, 2, 3])).tolist()
    [0, 0, 0, -1, -1]
    """
    read = np.unique(documents)
    alone = np.bincount(files[read], minlength=int(files.max(initial=0)) + 1) < 2
    group: Array = np.where(alone[files], -1 - languages, files)[documents]
    return group


def match_two_by_two(lengths: Array, kinds: Array, owners: Array, draws: Draws, words: Array | None = None) -> Array:
    """Return for each of m items the one it is matched with, or -1: at random among those of about the same length.

    Both are of the same kind and of different owners and, where `words` numbers what they say, say different things.

    >>> match_two_by_two(np.array([5, 9, 9, 5]), np.zeros(4), np.arange(4), Draws(0)).tolist()
    [3, 2, 1, 0]
    """
    partner = np.full(len(lengths), -1)
    left = np.arange(len(lengths))
    step = idle = 0
    while len(left) > 1 and idle < PATIENCE:
        order = left[np.lexsort((draws.hashed("match", step, left), lengths[left], kinds[left]))]
        order = order[step % 2 :]  # neighbors that do not fit meet others in the next round
        one, other = order[: len(order) // 2 * 2 : 2], order[1::2]
        fits = (kinds[one] == kinds[other]) & (owners[one] != owners[other])
        if words is not None:
            fits &= words[one] != words[other]
        partner[one[fits]], partner[other[fits]] = other[fits], one[fits]
        left = left[partner[left] < 0]
        idle = 0 if fits.any() else idle + 1
        step += 1
    return partner
