"""Permutation language modeling (Yang et al., 2019, XLNet): predict tokens one after the other, in a random order.

I am happy to join with you today
order     I am to join with today (context), you, happy
predicts  you from the context; happy from the context and you
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern, permutation
from pretune.objectives.objective import Data, Grows, Loss, token_loss
from pretune.objectives.pretraining import masking
from pretune.objectives.pretraining.arrangements import spans_epoch
from pretune.objectives.pretraining.stateful_batches import lanes_epoch
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import shuffled, starts_of, totals
from pretune.packed import Batch
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


@register_objective
@dataclass(frozen=True)
class PLM(Grows):
    """One token in `k` is predicted, in n-grams of up to `longest` words, n of them with a chance in proportion to 1/n.

    Each sequence is cut into `parts`, read one after the other. Within a part, what is not predicted comes first, as
    context that sees itself both ways; then come the others, in random order. The first token of a text is context. With
    `stateful`, texts come in lanes and each batch goes on where the one before ended.

    As the released code, but for the places of n-grams: these are drawn among each other, where that code goes through
    the text from left to right and leaves some k · n tokens of context around each.
    """

    k: float = 6
    longest: int = 5
    parts: int = 2
    stateful: bool = False

    name: ClassVar[str] = "plm"
    pattern: ClassVar[Pattern | None] = permutation
    insists: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.k > 1:
            raise PretuneError(f"plm: k={self.k:g} leaves no context; one token in k is predicted, with k more than 1")
        for option, value in (("longest", self.longest), ("parts", self.parts)):
            if not (isinstance(value, int) and value >= 1):
                raise PretuneError(f"plm: {option}={value} is no number of {option}; give 1 or more")

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """Documents in spans of whole sentences, or in lanes."""
        return lanes_epoch(data, packing, draws) if self.stateful else spans_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """A token to predict comes twice: as it is, for those later in the order, and, in column `stream`, as a query.

        Column `order` has their places; context has that of the beginning of its part.
        """
        units = masking.spans(sequences, draws, masking.inverse(self.longest))
        predicted = np.zeros(len(sequences.ids), dtype=bool)
        predicted[masking.choose(sequences, 1 / self.k, draws, units)] = True
        first = masking.starts(sequences) | sequences.columns.get("fresh", False)
        order = self.order(sequences, draws, context=first | ~(predicted | sequences.columns["special"]))
        # Which token each of the new ones is, and whether it is a query, which follows its token.
        source = np.repeat(np.arange(len(order)), 1 + (predicted & ~first))
        query = np.concatenate([[False], source[1:] == source[:-1]])[: len(source)]
        columns = {name: column[source] for name, column in sequences.columns.items()}
        if "fresh" in columns:
            columns["fresh"] &= ~query
        return Sequences(
            ids=np.where(query, tokenizer.role("mask"), sequences.ids[source]),
            lengths=sequences.lengths + totals(predicted & ~first, sequences.lengths),
            index=sequences.index,
            columns=columns | {"order": order[source], "stream": query.astype(np.int64)},
            targets={self.name: (np.flatnonzero(query), sequences.ids[source[query]])},
            pattern=self.pattern,
            positions=sequences.place[source],
        )

    def order(self, sequences: Sequences, draws: Draws, context: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """(n,) the place of every token in the order of prediction: 2r for context, 2r + 1 for the others."""
        cuts = sequences.lengths[:, None] * np.arange(self.parts + 1) // self.parts
        sizes, number = np.diff(cuts).ravel(), np.arange(self.parts)
        rank = np.empty(len(context), dtype=np.int64)
        index = (sequences.index[:, None] * self.parts + number).ravel()
        rank[shuffled(sizes, draws, "order", index)] = np.arange(len(context))
        return np.where(context, 2 * np.repeat(starts_of(sizes), sizes), 2 * rank + 1)

    def room(self, packing: Packing) -> dict[str, int]:
        """round(length / k) of each sequence can add half a target each."""
        sequences = min(packing.sequences, packing.tokens)
        return {self.name: min(packing.tokens, int(packing.tokens / self.k) + sequences // 2 + 1)}

    def grown(self, packing: Packing) -> Packing:
        """With the queries; where there are fewer of them than there may be, filler takes their place."""
        most = self.room(packing)[self.name]
        length = packing.length + int(packing.length / self.k) + 1
        sequences = packing.sequences + -(-most // packing.length)
        return replace(packing, tokens=packing.tokens + most, length=length, sequences=sequences)

    def head(self, backbone: Backbone) -> nn.Module:
        """The family's way from states to the vocabulary."""
        return backbone.vocabulary_head()

    def loss(self, head: nn.Module, backbone: Backbone, batch: Batch) -> Loss:
        """Cross-entropy at the queries."""
        return token_loss(self.name, head, backbone, batch)
