"""Noise functions for concatenated texts: reordering, rotating, infilling, masking, and deleting.

Each returns new texts. `index` (b,) numbers the texts, so that the draws do not depend on the other texts of a pack.
"""

from __future__ import annotations

import numpy as np

from pretune.objectives.segment_ops import jostled, pick, places, running, shuffled, starts_of, take_groups, totals
from pretune.objectives.seq2seq.source_target import Texts
from pretune.runtime.arrays import Array
from pretune.runtime.randomness import Draws
from pretune.text.spans import spans_to_indices


def reorder(texts: Texts, begins: Array, draws: Draws, index: Array, window: int | None = None) -> Texts:
    """Shuffle the units (words or sentences) that start where `begins` (n,) is True, within each text.

    With `window`, no unit moves by more than that many positions.
    """
    begins = begins.copy()
    begins[starts_of(texts.lengths)] = True  # a text may start in the middle of a unit
    counts = totals(begins, texts.lengths)
    if window is None:
        order = shuffled(counts, draws, "reorder", index)
    else:
        order = jostled(counts, window, draws, "reorder", index)
    return Texts(texts.ids[take_groups(begins, order)], texts.lengths)


def rotate(texts: Texts, draws: Draws, index: Array) -> Texts:
    """Rotate each text so that it starts at a random token."""
    first = draws.integers(np.maximum(1, texts.lengths), "rotate", index)
    place = places(texts.lengths) + np.repeat(first, texts.lengths)
    place %= np.repeat(texts.lengths, texts.lengths)
    return Texts(texts.ids[place + np.repeat(starts_of(texts.lengths), texts.lengths)], texts.lengths)


def infill(texts: Texts, rate: float, mean: float, token: int, draws: Draws, index: Array) -> Texts:
    """Replace a share `rate` of the tokens, in spans of Poisson(`mean`) tokens, by one mask `token` per span."""
    hidden = np.minimum(texts.lengths, np.maximum(1, np.round(rate * texts.lengths))).astype(np.int64)
    lengths, counts = span_lengths(hidden, mean, draws, index)
    gone = totals(lengths, counts)
    # Each position of the result is a token that stays or a span; choose which positions are spans.
    left = texts.lengths - gone + counts
    is_span = pick(left, counts, draws, "places of spans", index)
    ids = np.full(len(is_span), token, dtype=np.int64)
    before = running(is_span, left)[is_span]  # spans of the text up to and including each
    stays = np.flatnonzero(is_span) - np.repeat(starts_of(left), counts) - before + 1  # tokens that stay before it
    begins = stays + running(lengths, counts) - lengths + np.repeat(starts_of(texts.lengths), counts)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[spans_to_indices(begins, lengths)] = False
    ids[~is_span] = texts.ids[kept]
    return Texts(ids, left)


def span_lengths(hidden: Array, mean: float, draws: Draws, index: Array) -> tuple[Array, Array]:
    """Draw Poisson span lengths until they cover `hidden` (b,) tokens per text; return lengths (s,) and spans per text (b,).

    The last span of a text is shortened to fit. Where empty spans would make a text longer, they have one token instead.
    """
    drawn = poisson(draws.uniform("lengths of spans", np.repeat(index, hidden), places(hidden)), mean)
    lengths, used = _limit_to_budget(drawn, hidden)
    grows = totals(used, hidden) > totals(lengths, hidden)
    if grows.any():
        lengths, used = _limit_to_budget(np.where(np.repeat(grows, hidden), np.maximum(1, drawn), drawn), hidden)
    counts = totals(used, hidden)
    order = shuffled(counts, draws, "order of spans", index)  # so that the shortened span can be anywhere
    return lengths[used][order], counts


def _limit_to_budget(drawn: Array, hidden: Array) -> tuple[Array, Array]:
    """Limit the drawn lengths so that those of each text sum to `hidden`; return lengths and which of them are used."""
    budget = np.repeat(hidden, hidden)
    before = running(drawn, hidden) - drawn
    used = before < budget
    return np.where(used, np.minimum(drawn, budget - before), 0), used


def poisson(chance: Array, mean: float) -> Array:
    """Turn uniform numbers in [0, 1) into Poisson-distributed integers."""
    top = int(mean + 12 * mean**0.5) + 12  # greater values have a probability below the resolution of `chance`
    steps = np.arange(1, top)
    logarithms = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(steps))]) - mean
    return np.searchsorted(np.cumsum(np.exp(logarithms))[:-1], chance, side="right")


def mask(texts: Texts, rate: float, token: int, draws: Draws, index: Array) -> Texts:
    """Replace a share `rate` of the tokens of each text by the mask `token`."""
    ids = texts.ids.copy()
    ids[_choose(texts, rate, token, draws, "mask", index)] = token
    return Texts(ids, texts.lengths)


def delete(texts: Texts, rate: float, token: int, draws: Draws, index: Array) -> Texts:
    """Delete a share `rate` of the tokens of each text, never mask tokens; at least one token stays."""
    gone = _choose(texts, rate, token, draws, "delete", index, keep=1)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[gone] = False
    return Texts(texts.ids[kept], totals(kept, texts.lengths))


def _choose(texts: Texts, rate: float, token: int, draws: Draws, purpose: str, index: Array, keep: int = 0) -> Array:
    """Choose a share of the tokens at random, never mask tokens, leaving at least `keep` per text; return their indices."""
    free = texts.ids != token
    counts = totals(free, texts.lengths)
    wanted = np.clip(np.round(rate * counts), 1, np.maximum(0, np.minimum(counts, texts.lengths - keep)))
    return np.flatnonzero(free)[pick(counts, wanted.astype(np.int64), draws, purpose, index)]
