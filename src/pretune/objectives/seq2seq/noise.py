"""Noise in texts that lie end to end: reordering, rotating, infilling, masking, deleting. Each makes new texts of the old."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.objectives.segment_ops import jostled, pick, places, running, shuffled, starts_of, take_groups, totals
from pretune.objectives.seq2seq.source_target import Texts
from pretune.runtime.randomness import Draws
from pretune.text.spans import spans_to_indices

Array = np.ndarray[Any, np.dtype[Any]]


def reorder(texts: Texts, begins: Array, draws: Draws, index: Array, window: int | None = None) -> Texts:
    """The units (words, sentences) that start where `begins` is True, in random order inside each text.

    With a `window`, no unit moves further than so many places.
    """
    begins = begins.copy()
    begins[starts_of(texts.lengths)] = True  # a text may start inside a unit that was cut
    counts = totals(begins, texts.lengths)
    if window is None:
        order = shuffled(counts, draws, "reorder", index)
    else:
        order = jostled(counts, window, draws, "reorder", index)
    return Texts(texts.ids[take_groups(begins, order)], texts.lengths)


def rotate(texts: Texts, draws: Draws, index: Array) -> Texts:
    """Each text begins at a random token of its own."""
    first = draws.integers(np.maximum(1, texts.lengths), "rotate", index)
    place = places(texts.lengths) + np.repeat(first, texts.lengths)
    place %= np.repeat(texts.lengths, texts.lengths)
    return Texts(texts.ids[place + np.repeat(starts_of(texts.lengths), texts.lengths)], texts.lengths)


def infill(texts: Texts, rate: float, mean: float, token: int, draws: Draws, index: Array) -> Texts:
    """Spans of random length, down to none at all, give way to one mask `token` each; `rate` of the tokens go."""
    hidden = np.minimum(texts.lengths, np.maximum(1, np.round(rate * texts.lengths))).astype(np.int64)
    lengths, counts = span_lengths(hidden, mean, draws, index)
    gone = totals(lengths, counts)
    # Of what is read, each place is a token that stays or a span: choose which ones are spans.
    left = texts.lengths - gone + counts
    is_span = pick(left, counts, draws, "places of spans", index)
    ids = np.full(len(is_span), token, dtype=np.int64)
    before = running(is_span, left)[is_span]  # spans of the text up to each one, itself included
    stays = np.flatnonzero(is_span) - np.repeat(starts_of(left), counts) - before + 1  # tokens that stay before it
    begins = stays + running(lengths, counts) - lengths + np.repeat(starts_of(texts.lengths), counts)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[spans_to_indices(begins, lengths)] = False
    ids[~is_span] = texts.ids[kept]
    return Texts(ids, left)


def span_lengths(hidden: Array, mean: float, draws: Draws, index: Array) -> tuple[Array, Array]:
    """Lengths of spans (s,) from a Poisson distribution, as many of them as hide so many tokens (b,); how many (b,).

    The last one is cut to fit. Where empty spans would make a text longer than it was, they have one token instead.
    """
    drawn = poisson(draws.uniform("lengths of spans", np.repeat(index, hidden), places(hidden)), mean)
    lengths, used = _spend(drawn, hidden)
    grows = totals(used, hidden) > totals(lengths, hidden)
    if grows.any():
        lengths, used = _spend(np.where(np.repeat(grows, hidden), np.maximum(1, drawn), drawn), hidden)
    counts = totals(used, hidden)
    order = shuffled(counts, draws, "order of spans", index)  # so that the one that was cut comes anywhere
    return lengths[used][order], counts


def _spend(drawn: Array, hidden: Array) -> tuple[Array, Array]:
    """Of lengths drawn for each text, what is left of each when the text's tokens are spent one after the other."""
    budget = np.repeat(hidden, hidden)
    before = running(drawn, hidden) - drawn
    used = before < budget
    return np.where(used, np.minimum(drawn, budget - before), 0), used


def poisson(chance: Array, mean: float) -> Array:
    """Poisson numbers from numbers in [0, 1)."""
    top = int(mean + 12 * mean**0.5) + 12  # beyond that lies less than can be drawn
    steps = np.arange(1, top)
    logarithms = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(steps))]) - mean
    return np.searchsorted(np.cumsum(np.exp(logarithms))[:-1], chance, side="right")


def mask(texts: Texts, rate: float, token: int, draws: Draws, index: Array) -> Texts:
    """Some tokens become the mask `token`."""
    ids = texts.ids.copy()
    ids[_some(texts, rate, token, draws, "mask", index)] = token
    return Texts(ids, texts.lengths)


def delete(texts: Texts, rate: float, token: int, draws: Draws, index: Array) -> Texts:
    """Some tokens disappear, masks never; one at least stays."""
    gone = _some(texts, rate, token, draws, "delete", index, keep=1)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[gone] = False
    return Texts(texts.ids[kept], totals(kept, texts.lengths))


def _some(texts: Texts, rate: float, token: int, draws: Draws, purpose: str, index: Array, keep: int = 0) -> Array:
    """Where a share of the tokens stand, masks left out, and `keep` of each text at least."""
    free = texts.ids != token
    counts = totals(free, texts.lengths)
    wanted = np.clip(np.round(rate * counts), 1, np.maximum(0, np.minimum(counts, texts.lengths - keep)))
    return np.flatnonzero(free)[pick(counts, wanted.astype(np.int64), draws, purpose, index)]
