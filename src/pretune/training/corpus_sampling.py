"""Sample several corpora in given proportions, as GPT-3 does, instead of in proportion to their size.

Brown et al., 2020 (arXiv:2005.14165), section 2.2: a corpus of higher quality is read several times, a large one perhaps
not even once. Within a corpus, documents are sampled without replacement until all of them were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pretune.objectives import Data
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import permutation
from pretune.text.store.store import Store

STEPS_PER_EPOCH = 32  # minimum, as far as the corpora have as much text


@dataclass(frozen=True)
class Corpus:
    """A corpus of a mixture: its name, its training documents in the joined store, and their numbers of tokens."""

    name: str
    documents: Array  # (d,) indices of its training documents in the store
    lengths: Array  # (d,) tokens of each
    weight: float  # share of the tokens of training, between 0 and 1

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the training documents."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class CorpusMixture:
    """Corpora that are sampled in given proportions; the documents of an epoch are a function of its number and the seed.

    An epoch of the mixture has `epoch_tokens` tokens, of which each corpus contributes its weight. The documents of a
    corpus are read in random order, and in another one after all were read; each epoch continues where the one before
    ended. So that documents seldom repeat within an epoch, it ends when the corpus that is read fastest was read once.
    """

    corpora: tuple[Corpus, ...]
    seed: int
    epoch_tokens: float
    _orders: dict[tuple[int, int], Array] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def make(cls, corpora: Sequence[Corpus], seed: int, step_tokens: int) -> CorpusMixture:
        """Return the mixture of some corpora whose weights add up to 1, for training steps of `step_tokens` tokens.

        >>> sizes = np.full(300, 10), np.full(100, 10)
        >>> books, news = (Corpus(str(k), np.arange(len(x)), x, 0.5) for k, x in enumerate(sizes))
        >>> CorpusMixture.make([books, news], seed=0, step_tokens=1).epoch_tokens
        2000.0
        """
        for corpus in corpora:
            if not corpus.tokens:
                raise PretuneError(f"{corpus.name}: the corpus has no text to train on; remove it and its weight")
        once = min(corpus.tokens / corpus.weight for corpus in corpora)
        total = sum(corpus.tokens for corpus in corpora)
        return cls(tuple(corpora), seed, max(once, min(total, STEPS_PER_EPOCH * step_tokens)))

    def documents(self, epoch: int) -> Array:
        """Return the indices of the documents of an epoch of the mixture, by corpus; they may repeat."""
        chosen = []
        for number, corpus in enumerate(self.corpora):
            first, last = (int(corpus.weight * self.epoch_tokens * count) for count in (epoch, epoch + 1))
            for reading in range(first // corpus.tokens, (last - 1) // corpus.tokens + 1):
                order = self._order(number, reading)
                lengths = corpus.lengths[order]
                starts = np.cumsum(lengths) - lengths + reading * corpus.tokens
                chosen.append(corpus.documents[order[(first <= starts) & (starts < last)]])
        return np.concatenate(chosen)

    def _order(self, number: int, reading: int) -> Array:
        """Return the order in which the documents of a corpus are read for the given time; recent ones are cached."""
        key = number, reading
        if key not in self._orders:
            for old in [known for known in self._orders if known[0] == number and abs(known[1] - reading) > 1]:
                del self._orders[old]
            count = len(self.corpora[number].documents)
            self._orders[key] = permutation(count, self.seed, "corpus", number, reading)
        return self._orders[key]

    def epoch_data(self, data: Data) -> Callable[[int], Data]:
        """Return a function from an epoch of the mixture to its data: `data` with the documents of this epoch."""
        return lambda epoch: replace(data, documents=self.documents(epoch), cache={})

    def describe(self, epochs: float) -> list[dict[str, Any]]:
        """Return one row per corpus: its tokens, its weight, and how many times it was read in `epochs` epochs."""
        return [
            {
                "corpus": corpus.name,
                "tokens": corpus.tokens,
                "weight": corpus.weight,
                "epochs": epochs * self.epoch_tokens * corpus.weight / corpus.tokens,
            }
            for corpus in self.corpora
        ]


def mix_corpora(
    names: Sequence[str], weights: Sequence[float], store: Store, documents: Array, seed: int, step_tokens: int
) -> CorpusMixture:
    """Return the mixture of the corpora that a store was joined from, given their names and weights, in its order.

    `documents` are the indices of the documents to train on. The weights need not add up to 1.

    >>> store = join_stores([Store("books/"), Store("web/")])  # doctest: +SKIP
    >>> mix_corpora(["books", "web"], [1, 3], store, np.arange(store.documents), 0, 8192).documents(0)  # doctest: +SKIP
    array([   4,    0,    7, ..., 2301, 1977, 1204])
    """
    tokens = store.sentence_offsets[store.document_offsets]
    lengths = np.diff(tokens)[documents]
    owners = np.searchsorted(np.cumsum(store.part_tokens), tokens[documents], side="right")
    own = [documents[(owners == number) & (lengths > 0)] for number in range(len(weights))]
    corpora = [
        Corpus(name, chosen, np.diff(tokens)[chosen], weight / sum(weights))
        for name, chosen, weight in zip(names, own, weights, strict=True)
    ]
    return CorpusMixture.make(corpora, seed, step_tokens)
