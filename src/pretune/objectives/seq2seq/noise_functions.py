"""Noise functions for concatenated texts: reordering, rotating, infilling, masking, and deleting.

Each function returns new texts. `index` (b,) has the numbers of the texts, which seed the random numbers: the noise of a text
does not depend on the other texts of a pack.
"""

from __future__ import annotations

import numpy as np

from pretune.objectives.segment_ops import (
    local_shuffle,
    reorder_groups,
    segment_cumsum,
    segment_positions,
    segment_sample,
    segment_shuffle,
    segment_starts,
    segment_sum,
)
from pretune.objectives.seq2seq.source_target import FlatTexts
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import EpochRandom
from pretune.text.spans import span_indices


def reorder(texts: FlatTexts, begins: Array, draws: EpochRandom, index: Array, window: int | None = None) -> FlatTexts:
    """Shuffle the words or sentences of each text, by at most `window` positions or, if None, without a limit.

    `begins` (n,) is True at the first token of each word or sentence.
    """
    begins = begins.copy()
    begins[segment_starts(texts.lengths)] = True  # a text may start in the middle of a unit
    counts = segment_sum(begins, texts.lengths)
    if window is None:
        order = segment_shuffle(counts, draws, "reorder", index)
    else:
        order = local_shuffle(counts, window, draws, "reorder", index)
    return FlatTexts(texts.ids[reorder_groups(begins, order)], texts.lengths)


def rotate(texts: FlatTexts, draws: EpochRandom, index: Array) -> FlatTexts:
    """Rotate the tokens of each text by a random number of positions, so that any of them can come first."""
    first = draws.integers(np.maximum(1, texts.lengths), "rotate", index)
    place = segment_positions(texts.lengths) + np.repeat(first, texts.lengths)
    place %= np.repeat(texts.lengths, texts.lengths)
    return FlatTexts(texts.ids[place + np.repeat(segment_starts(texts.lengths), texts.lengths)], texts.lengths)


def infill(texts: FlatTexts, rate: float, mean: float, token: int, draws: EpochRandom, index: Array) -> FlatTexts:
    """Replace a share `rate` of the tokens of each text in spans of random length, each span by one mask token.

    The lengths have a Poisson distribution with mean `mean`; `token` is the id of the mask token.
    """
    hidden = np.minimum(texts.lengths, np.maximum(1, np.round(rate * texts.lengths))).astype(np.int64)
    lengths, counts = span_lengths(hidden, mean, draws, index)
    gone = segment_sum(lengths, counts)
    # Each position of the result is a token that stays or a span; choose which positions are spans.
    left = texts.lengths - gone + counts
    is_span = segment_sample(left, counts, draws, "places of spans", index)
    ids = np.full(len(is_span), token, dtype=np.int64)
    before = segment_cumsum(is_span, left)[is_span]  # spans of the text up to and including each
    stays = np.flatnonzero(is_span) - np.repeat(segment_starts(left), counts) - before + 1  # tokens that stay before it
    begins = stays + segment_cumsum(lengths, counts) - lengths + np.repeat(segment_starts(texts.lengths), counts)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[span_indices(begins, lengths)] = False
    ids[~is_span] = texts.ids[kept]
    return FlatTexts(ids, left)


def span_lengths(hidden: Array, mean: float, draws: EpochRandom, index: Array) -> tuple[Array, Array]:
    """Draw span lengths from a Poisson distribution; return them, (s,), and the number of spans per text, (b,).

    The spans of text i have hidden[i] tokens in total; one span of the text is shortened to fit. A span can be empty;
    where empty spans would make a text longer, they get one token instead. `mean` is the mean of the distribution.
    """
    drawn = poisson(draws.uniform("lengths of spans", np.repeat(index, hidden), segment_positions(hidden)), mean)
    lengths, used = _limit_to_budget(drawn, hidden)
    grows = segment_sum(used, hidden) > segment_sum(lengths, hidden)
    if grows.any():
        lengths, used = _limit_to_budget(np.where(np.repeat(grows, hidden), np.maximum(1, drawn), drawn), hidden)
    counts = segment_sum(used, hidden)
    order = segment_shuffle(counts, draws, "order of spans", index)  # so that the shortened span can be anywhere
    return lengths[used][order], counts


def _limit_to_budget(drawn: Array, hidden: Array) -> tuple[Array, Array]:
    """Cut the span lengths `drawn` so that they sum to hidden[i] for each text i; return them and a mask of spans used.

    `drawn` has hidden[i] lengths for text i, one after the other. Spans beyond the sum are not used and get the length
    0.
    """
    budget = np.repeat(hidden, hidden)
    before = segment_cumsum(drawn, hidden) - drawn
    used = before < budget
    return np.where(used, np.minimum(drawn, budget - before), 0), used


def poisson(chance: Array, mean: float) -> Array:
    """Turn uniform random numbers `chance` in [0, 1) into Poisson-distributed integers with mean `mean`."""
    top = int(mean + 12 * mean**0.5) + 12  # greater values have a probability below the resolution of `chance`
    steps = np.arange(1, top)
    logarithms = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(steps))]) - mean
    return np.searchsorted(np.cumsum(np.exp(logarithms))[:-1], chance, side="right")


def mask(texts: FlatTexts, rate: float, token: int, draws: EpochRandom, index: Array) -> FlatTexts:
    """Replace a random share `rate` of the tokens of each text by the mask token `token`."""
    ids = texts.ids.copy()
    ids[_choose(texts, rate, token, draws, "mask", index)] = token
    return FlatTexts(ids, texts.lengths)


def delete(texts: FlatTexts, rate: float, token: int, draws: EpochRandom, index: Array) -> FlatTexts:
    """Delete a random share `rate` of the tokens of each text, but no mask tokens; at least one token remains.

    `token` is the id of the mask token.
    """
    gone = _choose(texts, rate, token, draws, "delete", index, keep=1)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[gone] = False
    return FlatTexts(texts.ids[kept], segment_sum(kept, texts.lengths))


def _choose(
    texts: FlatTexts, rate: float, token: int, draws: EpochRandom, purpose: str, index: Array, keep: int = 0
) -> Array:
    """Return the indices of randomly chosen tokens: a share `rate` of each text's tokens that are not mask tokens.

    `token` is the id of the mask token, and `purpose` seeds the random numbers. At least one token of a text is chosen,
    unless fewer than `keep` of its tokens would be left.
    """
    free = texts.ids != token
    counts = segment_sum(free, texts.lengths)
    wanted = np.clip(np.round(rate * counts), 1, np.maximum(0, np.minimum(counts, texts.lengths - keep)))
    return np.flatnonzero(free)[segment_sample(counts, wanted.astype(np.int64), draws, purpose, index)]
