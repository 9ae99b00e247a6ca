"""Word order (Wang et al., 2019, StructBERT, arXiv:1908.04577): predict the original tokens of shuffled trigrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.nn.attention.patterns import Pattern, full
from pretune.objectives.pretraining.arrangements import ReadsDocuments
from pretune.objectives.pretraining.masking import check_positive_fractions
from pretune.objectives.pretraining.token_prediction import TokenPrediction
from pretune.objectives.registry import register_objective
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

MASKED_TERMS = frozenset({"mlm", "tlm", "item"})  # loss terms whose targets are masked tokens
DETECTION_TERMS = frozenset({"rtd", "trtd"})  # loss terms that ask of every token whether it is the original one


@register_objective
@dataclass(frozen=True)
class WordOrder(ReadsDocuments, TokenPrediction):
    """Word order: the tokens of some n-grams are shuffled, and the original token at each position is predicted.

    Each sequence is cut into n-grams of `ngram_size` tokens, starting at a random one of its first `ngram_size` tokens.
    A share `shuffle_rate` of the n-grams, at least one per sequence, is shuffled. In a sum such as mlm+word_order,
    n-grams that contain masked tokens are not shuffled.
    """

    shuffle_rate: float = 0.05
    ngram_size: int = 3

    name: ClassVar[str] = "word_order"
    shared_head: ClassVar[str] = "mlm"  # both predict tokens in place, with one output layer
    pattern: ClassVar[Pattern | None] = full
    corrupts_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive_fractions(self.name, shuffle_rate=self.shuffle_rate)
        if self.ngram_size < 2:
            raise PretuneError(
                f"word_order(ngram_size={self.ngram_size}): one token has no order; give 2 or more, usually 3"
            )

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Shuffle the tokens of some n-grams, and set the original tokens as prediction targets."""
        if found := DETECTION_TERMS & sequences.targets.keys():
            raise PretuneError(
                f"{min(found)}+word_order: shuffled tokens would count as replaced; write {min(found)}|word_order to alternate both"
            )
        first = self.choose_ngrams(sequences, draws)
        at = first[:, None] + np.arange(self.ngram_size)  # (k, ngram_size)
        places = sequences.index_in_sequence
        order = np.argsort(draws.random_bits("shuffle", sequences.index[sequences.owner[at]], places[at]), 1)
        original = sequences.ids[at]
        sequences.ids[at] = np.take_along_axis(original, order, 1)
        sequences.targets[self.name] = (at.ravel(), original.ravel())
        return sequences

    def choose_ngrams(self, sequences: Sequences, draws: EpochRandom) -> Array:
        """Return the indices of the first tokens of the n-grams to shuffle, (k,), sorted; n-grams do not overlap."""
        free = ~sequences.columns["special"]
        wanted = np.bincount(sequences.owner[free], minlength=len(sequences.lengths)) // self.ngram_size
        wanted = np.maximum(1, np.round(self.shuffle_rate * wanted)).astype(np.int64)
        for term in MASKED_TERMS & sequences.targets.keys():
            free[sequences.targets[term][0]] = False
        places, owners, most = sequences.index_in_sequence, sequences.owner, self.ngram_size - 1
        shift = draws.integers(self.ngram_size, "shift", sequences.index)[owners]
        begins = (places % self.ngram_size == shift) & (places + most < sequences.lengths[owners])
        first = np.flatnonzero(begins)
        first = first[free[first[:, None] + np.arange(self.ngram_size)].all(1)]
        owner = owners[first]
        ranked = np.lexsort((draws.uniform("ngram", sequences.index[owner], places[first]), owner))
        rank = np.arange(len(ranked)) - np.searchsorted(owner, owner)  # owners are sorted
        return np.sort(first[ranked[rank < wanted[owner]]])

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch: the tokens of the shuffled n-grams."""
        ngrams = int(self.shuffle_rate * packing.tokens / self.ngram_size) + packing.sequences
        return {self.name: min(packing.tokens, ngrams * self.ngram_size)}
