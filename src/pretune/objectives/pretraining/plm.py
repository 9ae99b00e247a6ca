"""Permutation language modeling (Yang et al., 2019, XLNet): predict tokens one by one in a random order.

text     I am happy to join with you today
order    I am to join with today (context), you, happy
predict  "you" from the context; "happy" from the context and "you"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import Pattern, permutation
from pretune.objectives.objective import AddsTokens, Data
from pretune.objectives.pretraining import masking
from pretune.objectives.pretraining.arrangements import document_span_epoch
from pretune.objectives.pretraining.stateful_batches import stream_epoch
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import segment_shuffle, segment_starts, segment_sum
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class PLM(TokenPrediction, AddsTokens):
    """Permutation language modeling: one token in `k` is predicted, in n-grams of up to `max_ngram` words.

    The probability of an n-gram of n words is proportional to 1/n. Each sequence is cut into `num_parts` parts, read in
    order. Within a part, the tokens that are not predicted come first and attend to each other in both directions; the
    predicted tokens follow in random order. With `stateful`, each batch continues the documents of the previous one.
    N-grams are placed at random; the released code of XLNet places them from left to right.
    """

    k: float = 6
    max_ngram: int = 5
    num_parts: int = 2
    stateful: bool = False

    name: ClassVar[str] = "plm"
    pattern: ClassVar[Pattern | None] = permutation

    def __post_init__(self) -> None:
        if not self.k > 1:
            raise PretuneError(
                f"plm: k={self.k:g} leaves no context; one token in k is predicted, so give k greater than 1"
            )
        for option, value in (("max_ngram", self.max_ngram), ("num_parts", self.num_parts)):
            if not (isinstance(value, int) and value >= 1):
                raise PretuneError(f"plm: {option}={value} is not valid; give an integer of 1 or more")

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences or, for stateful batches, into contiguous streams."""
        return stream_epoch(data, packing, draws) if self.stateful else document_span_epoch(data, packing, draws)

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Choose the tokens to predict and their order, and insert a query token after each predicted token.

        In the columns of the sequences, `stream` is 1 for queries, and `order` has the rank of each token. A query
        predicts its token from the tokens of lower rank.
        """
        units = masking.span_units(sequences, draws, masking.inverse_length_weights(self.max_ngram))
        predicted = np.zeros(len(sequences.ids), dtype=bool)
        predicted[masking.choose_masked(sequences, 1 / self.k, draws, units)] = True
        first = masking.sequence_starts(sequences) | sequences.columns.get("document_start", False)
        order = self.order(sequences, draws, context=first | ~(predicted | sequences.columns["special"]))
        # The original token of each new token, and whether the new one is a query; a query follows its token.
        source = np.repeat(np.arange(len(order)), 1 + (predicted & ~first))
        query = np.concatenate([[False], source[1:] == source[:-1]])[: len(source)]
        columns = {name: column[source] for name, column in sequences.columns.items()}
        if "document_start" in columns:
            columns["document_start"] &= ~query
        return Sequences(
            ids=np.where(query, tokenizer.role("mask"), sequences.ids[source]),
            lengths=sequences.lengths + segment_sum(predicted & ~first, sequences.lengths),
            index=sequences.index,
            columns=columns | {"order": order[source], "stream": query.astype(np.int64)},
            targets={self.name: (np.flatnonzero(query), sequences.ids[source[query]])},
            pattern=self.pattern,
            positions=sequences.index_in_sequence[source],
        )

    def order(self, sequences: Sequences, draws: EpochRandom, context: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """Return the rank of each token in the prediction order, (n,); a token is predicted from those of lower rank.

        `context` (n,) is True for the tokens that are not predicted: those of one part have equal ranks, below the
        random ranks of the part's predicted tokens.
        """
        cuts = sequences.lengths[:, None] * np.arange(self.num_parts + 1) // self.num_parts
        sizes, number = np.diff(cuts).ravel(), np.arange(self.num_parts)
        rank = np.empty(len(context), dtype=np.int64)
        index = (sequences.index[:, None] * self.num_parts + number).ravel()
        rank[segment_shuffle(sizes, draws, "order", index)] = np.arange(len(context))
        return np.where(context, 2 * np.repeat(segment_starts(sizes), sizes), 2 * rank + 1)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: one in `k` tokens, plus a margin for rounding."""
        sequences = min(packing.sequences, packing.tokens)
        return {self.name: min(packing.tokens, int(packing.tokens / self.k) + sequences // 2 + 1)}

    def max_packing(self, packing: Packing) -> Packing:
        """Return the batch limits `packing`, raised by the query tokens that the objective inserts."""
        most = self.max_targets(packing)[self.name]
        length = packing.length + int(packing.length / self.k) + 1
        sequences = packing.sequences + -(-most // packing.length)
        return replace(packing, tokens=packing.tokens + most, length=length, sequences=sequences)
