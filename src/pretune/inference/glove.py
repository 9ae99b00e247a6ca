"""Train GloVe word vectors: weighted least squares on the logarithms of co-occurrence counts.

Pennington et al., 2014. A pair of words at a distance of d in a sentence counts 1/d. For words i and j with the count
x, the loss is min(1, x / x_max)^0.75 (wᵢ · w̃ⱼ + bᵢ + b̃ⱼ - log x)², minimized with AdaGrad; the vector of a word is
w + w̃.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import progress
from pretune.runtime.randomness import permutation
from pretune.text.corpus.word_vector_files import WordVectors

POWER = 0.75  # of the weight of rare pairs
LEARNING_RATE = 0.05
BATCH = 4096  # pairs per update
SENTENCES_AT_ONCE = 10_000


@dataclass(frozen=True)
class Cooccurrences:
    """The pairs of words that occur near each other: the indices of both words (row and column), and the count."""

    rows: Array
    columns: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.rows)


def train_glove(
    sentences: Sequence[Sequence[str]],
    *,
    vector_size: int,
    window: int,
    min_count: int,
    epochs: int,
    x_max: float = 100.0,
    seed: int = 0,
) -> WordVectors:
    """Train GloVe vectors on sentences, which are lists of words, and return them, frequent words first.

    `window` is the maximum distance of a pair of words, and `x_max` the count from which pairs have full weight.
    """
    counts = Counter(chain.from_iterable(sentences))
    words = [word for word, count in counts.most_common() if count >= min_count]
    pairs = count_cooccurrences(sentences, words, window)
    if not len(pairs):
        raise PretuneError(
            f"no sentence has two words that each occur at least {min_count} times in the text; give more text, or "
            f"a --min-count below {min_count}"
        )
    model = GloVe(len(words), vector_size, seed)
    with progress("GloVe", total=epochs) as bar:
        for epoch, loss in enumerate(model.fit(pairs, epochs, x_max, seed), 1):
            bar.update(epoch, note=f"loss {loss:.4f}")
    return WordVectors(words, model.vectors())


def count_cooccurrences(sentences: Sequence[Sequence[str]], words: Sequence[str], window: int) -> Cooccurrences:
    """Count how often words occur within `window` words of each other in a sentence, in both directions.

    A pair at a distance of d counts 1/d. Words that are not in `words` have no counts, but add to the distance.

    >>> pairs = count_cooccurrences([["a", "x", "b"]], ["a", "b"], window=2)
    >>> pairs.rows.tolist(), pairs.columns.tolist(), pairs.counts.tolist()
    ([0, 1], [1, 0], [0.5, 0.5])
    """
    number = {word: place for place, word in enumerate(words)}
    window = min(window, max(map(len, sentences), default=0))  # no pair is further apart
    keys: Array = np.empty(0, dtype=np.int64)
    counts: Array = np.empty(0)
    gap = [-1] * window  # between sentences
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        group = sentences[start : start + SENTENCES_AT_ONCE]
        ids = np.array([place for sentence in group for place in [*(number.get(word, -1) for word in sentence), *gap]])
        found, weights = [keys], [counts]
        for distance in range(1, window + 1):
            left, right = ids[:-distance], ids[distance:]
            known = (left >= 0) & (right >= 0)
            left, right = left[known], right[known]
            found += [left * len(words) + right, right * len(words) + left]
            weights += [np.full(2 * len(left), 1 / distance)]
        keys, inverse = np.unique(np.concatenate(found), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate(weights), len(keys))
    return Cooccurrences(keys // max(1, len(words)), keys % max(1, len(words)), counts)


class GloVe:
    """The parameters of GloVe: a vector and a bias for each word, and another pair for the word as a context word."""

    def __init__(self, words: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def table(columns: int) -> Tensor:
            return ((torch.rand(words, columns, generator=generator) - 0.5) / width).requires_grad_()

        self.word, self.context, self.word_bias, self.context_bias = table(width), table(width), table(1), table(1)

    def fit(self, pairs: Cooccurrences, epochs: int, x_max: float, seed: int) -> Iterator[float]:
        """Train for `epochs` passes over the pairs, in random order, and yield the mean loss of a pair in each pass."""
        tables = [self.word, self.context, self.word_bias, self.context_bias]
        optimizer = torch.optim.Adagrad(tables, lr=LEARNING_RATE, initial_accumulator_value=1.0)
        at = torch.from_numpy(np.stack([pairs.rows, pairs.columns]))
        logs = torch.from_numpy(np.log(pairs.counts)).float()
        weights = torch.from_numpy(np.minimum(1.0, pairs.counts / x_max) ** POWER).float()
        for epoch in range(epochs):
            total = 0.0
            for chosen in torch.split(torch.from_numpy(permutation(len(pairs), seed, "glove", epoch)), BATCH):
                optimizer.zero_grad()
                rows, columns = at[:, chosen]
                word, context, word_bias, context_bias = (
                    torch.nn.functional.embedding(where, own, sparse=True)
                    for where, own in zip((rows, columns, rows, columns), tables, strict=True)
                )
                predicted = (word * context).sum(1) + (word_bias + context_bias)[:, 0]
                loss = (weights[chosen] * (predicted - logs[chosen]) ** 2).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                    optimizer.step()
                total += loss.item()
            yield total / len(pairs)

    def vectors(self) -> Array:
        """Return the vector of each word, (words, width): the sum of its word vector and its context vector."""
        vectors: Array = (self.word + self.context).detach().numpy()
        return vectors
