"""Language modeling: predict each token from those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from pretune.errors import PretuneError
from pretune.nn.patterns import Pattern, causal
from pretune.objectives.arrangements import spans_epoch
from pretune.objectives.objective import Data, Loss, token_loss
from pretune.packed import Batch
from pretune.randomness import Draws
from pretune.text.plan import Lanes, make_lanes
from pretune.text.sequences import Columns, Epoch, Packing, Sequences
from pretune.text.store import Store, spans_to_indices
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.states import Backbone

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class LM:
    """Left to right. With `stateful`, texts come in lanes and each batch goes on where the one before ended."""

    stateful: bool = False

    name: ClassVar[str] = "lm"
    pattern: ClassVar[Pattern | None] = causal
    insists: ClassVar[bool] = False

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences, or in lanes."""
        return lanes_epoch(data, packing, draws) if self.stateful else spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Targets are the next tokens; the last of a sequence has none, unless the arrangement knows it."""
        if "next" in sequences.columns:
            following = sequences.columns["next"]
            at = np.flatnonzero(following >= 0)
            sequences.targets[self.name] = (at, following[at])
        else:
            last = np.zeros(len(sequences.ids), dtype=bool)
            last[sequences.offsets[1:] - 1] = True
            at = np.flatnonzero(~last)
            sequences.targets[self.name] = (at, sequences.ids[at + 1])
        sequences.pattern = self.pattern
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Every token but the last of a sequence."""
        return {self.name: packing.tokens}

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at every token that has a next one."""
        return token_loss(self.name, head, backbone, batch)


def lanes_epoch(data: Data, packing: Packing, draws: Draws) -> LaneEpoch:
    """Documents in lanes, for objectives whose batches go on where the one before ended."""
    if data.store is None:
        raise PretuneError("a stateful objective reads raw text; give it a corpus or a store, not labeled rows")
    if data.languages:
        raise PretuneError("a stateful objective reads text of one language; give it one store")
    return LaneEpoch.make(data.store, data.documents, packing, draws)


@dataclass
class LaneEpoch:
    """Windows of lanes: pack t · g + i holds the i-th of g groups of lanes at time t."""

    store: Store
    lanes: Lanes
    groups: int
    ends: Array  # (documents,) where documents end in the store, sorted

    @classmethod
    def make(cls, store: Store, documents: Array, packing: Packing, draws: Draws) -> LaneEpoch:
        """As many lanes as windows of `packing.length` tokens fit into the packs of one step."""
        bounds = store.sentence_offsets[store.document_offsets]
        begin, end = bounds[documents], bounds[documents + 1]
        per_pack = max(1, packing.tokens // packing.length)
        lanes = make_lanes(begin, end - begin, lanes=per_pack * packing.lanes, window=packing.length, draws=draws)
        return cls(store, lanes, packing.lanes, np.sort(end))

    def __len__(self) -> int:
        return len(self.lanes) * self.groups

    def sizes(self) -> Array:
        """(packs,) how many lanes each has, and as many more as filler may take where windows are shorter than they could be."""
        per_pack, window = self.lanes.lanes // self.groups, self.lanes.window
        return np.full(len(self), per_pack - (-per_pack * (window - self.lanes.shortest) // window))

    def pack(self, index: int) -> Sequences:
        """A group of lanes at one time, a lane to a sequence; column `next` has the token after each, -1 for none.

        Column `fresh` marks where documents begin, and where a lane does.
        """
        time, group = divmod(index, self.groups)
        per_pack = self.lanes.lanes // self.groups
        window = self.lanes.batch(time)
        mine = window.lane // per_pack == group
        starts, spans, lane = window.starts[mine], window.lengths[mine], window.lane[mine] - group * per_pack
        fresh = window.fresh[mine] | ((time == 0) & np.concatenate([[True], lane[1:] != lane[:-1]])[: len(lane)])
        places = spans_to_indices(starts, spans)
        is_end = np.isin(places + 1, self.ends)
        following = self.store.gather(np.minimum(places + 1, self.store.tokens - 1), np.ones_like(places))
        begins = np.zeros(len(places), dtype=bool)
        begins[(np.cumsum(spans) - spans)[fresh]] = True
        return Sequences(
            ids=self.store.gather(starts, spans).astype(np.int64),
            lengths=np.bincount(lane, weights=spans, minlength=per_pack).astype(np.int64),
            index=np.arange(per_pack) + group * per_pack + time * self.lanes.lanes,
            columns=Columns(
                {
                    "special": np.zeros(len(places), dtype=bool),
                    "fresh": begins,
                    "next": np.where(is_end, -1, following.astype(np.int64)),
                },
                word=lambda: self.store.gather_words(starts, spans),
            ),
        )
