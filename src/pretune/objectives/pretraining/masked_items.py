"""Masked items (Sun et al., 2019, BERT4Rec): predict hidden items of a user's history, from both sides.

A history is a document of one sentence, its items are the tokens (tokenizers of kind `items`), in order of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.objective import Data, Loss, Objective, token_loss
from pretune.objectives.pretraining.masking import check_share, choose, hide
from pretune.objectives.registry import register_objective
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Arrangement, Epoch, Packing, Sequences, plan_epoch
from pretune.text.store.store import Store
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@register_objective
@dataclass(frozen=True)
class Item(Objective):
    """All chosen items become [MASK]; in a share `last` of the sequences that is the last one alone, as when it is used.

    The last `held` items of every history are never seen: they are what evaluation asks for.
    """

    rate: float = 0.2
    last: float = 0.1
    held: int = 2

    name: ClassVar[str] = "item"
    pattern: ClassVar[Pattern | None] = full
    insists: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    corrupts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share(self.name, rate=self.rate)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Histories in windows that end with the newest items; in later epochs the cuts between windows fall elsewhere."""
        room = packing.length - data.template.overhead(pair=False)
        if data.store is None:
            raise PretuneError("item reads histories; give it a store of them, not labeled rows")
        if room < 2:
            raise PretuneError(f"sequences of {packing.length} tokens leave no room for two items; ask for longer ones")
        begin, end = histories(data.store, data.documents, self.held)
        if not len(begin):
            raise PretuneError(
                f"item needs histories of {self.held + 2} items or more, of which the last {self.held} are kept for "
                "evaluation; there are none"
            )
        sizes = end - begin
        shift = draws.integers(room // 2 + 1, "shift", begin) if draws.epoch else np.zeros_like(begin)
        shift = np.where(sizes > room, shift, 0)  # the newest window is so much shorter
        windows = -(-(sizes + shift) // room)
        number = np.arange(int(windows.sum())) - np.repeat(np.cumsum(windows) - windows, windows)
        begin, end, shift = (np.repeat(x, windows) for x in (begin, end, shift))
        stop = end - np.maximum(0, number * room - shift)
        start = np.maximum(begin, end - (number + 1) * room + shift)
        arrangement = Arrangement(
            data.store, data.tokenizer, data.template, start[:, None], np.asarray(stop - start)[:, None]
        )
        return plan_epoch(arrangement, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Hide items; targets are the originals."""
        at = choose(sequences, self.rate, draws)
        ends = draws.uniform("last", sequences.index) < self.last
        at = np.sort(np.concatenate([at[~ends[sequences.owner[at]]], last_items(sequences)[ends]]))
        sequences.targets[self.name] = (at, hide(sequences, at, tokenizer, draws, masked=1.0, swapped=0.0))
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """round(rate · length) of each sequence can add half a target each."""
        sequences = min(packing.sequences, packing.tokens)
        return {self.name: min(packing.tokens, int(self.rate * packing.tokens) + sequences // 2 + 1)}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the hidden items."""
        return token_loss(self.name, head, backbone, batch)


def histories(store: Store, documents: Array, held: int) -> tuple[Array, Array]:
    """Where histories begin and end in a store, their last items left out; those of fewer than two items are not there."""
    bounds = store.sentence_offsets[store.document_offsets]
    begin, end = bounds[documents], bounds[documents + 1] - held
    long_enough = end - begin >= 2
    return begin[long_enough], end[long_enough]


def last_items(sequences: Sequences) -> Array:
    """(b,) the last token of each sequence that is not special."""
    free = np.flatnonzero(~sequences.columns["special"])
    return np.asarray(free[np.searchsorted(free, sequences.offsets[1:]) - 1])
