"""Choosing what to hide, and hiding it: tokens, whole words, spans of words, n-grams or phrases.

Text is cut into units, units are taken in random order until their share of a sequence is reached. A unit is taken piece by
piece (a span word by word), so that one that no longer fits is cut short; what has one piece alone is taken whole or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.errors import PretuneError
from pretune.randomness import Draws, hashed
from pretune.text.phrases import Phrases
from pretune.text.sequences import Sequences
from pretune.text.store import spans_to_indices
from pretune.text.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
PASSES = 2  # over the pieces: what is left when one does not fit goes to smaller ones that come later


@dataclass(frozen=True)
class Units:
    """Text in units: pieces in order, those of one unit next to one another."""

    first: Array  # (k,) first token of each piece
    sizes: Array  # (k,) tokens of each piece
    unit: Array  # (k,) first token of the unit it belongs to


def tokens(sequences: Sequences) -> Units:
    """Every token that is not special by itself."""
    first = np.flatnonzero(~sequences.columns["special"])
    return Units(first, np.ones_like(first), first)


def words(sequences: Sequences) -> Units:
    """Every word whole; where a sequence begins inside one, the rest of it."""
    special = sequences.columns["special"]
    bounds = special | sequences.columns["word"] | starts(sequences)
    bounds[1:] |= special[:-1]
    edges = np.append(np.flatnonzero(bounds), len(special))
    sizes = np.diff(edges)
    mine = ~special[edges[:-1]]
    first = edges[:-1][mine]
    return Units(first, sizes[mine], first)


def runs(sequences: Sequences, pieces: Units) -> Array:
    """(k,) True where a piece does not follow the one before: text begins, or a special token lies between."""
    fresh = starts(sequences)[pieces.first]
    fresh[1:] |= pieces.first[1:] != pieces.first[:-1] + pieces.sizes[:-1]
    fresh[:1] = True
    return fresh


def starts(sequences: Sequences) -> Array:
    """(n,) True where a sequence begins."""
    begins = np.zeros(len(sequences.ids), dtype=bool)
    begins[sequences.offsets[:-1][sequences.lengths > 0]] = True
    return begins


def spans(sequences: Sequences, draws: Draws, shares: Array) -> Units:
    """Words in spans of random lengths, end to end: a share shares[n - 1] has n words; none goes across a special token.

    Units are taken with equal chance, so that those taken have these lengths too, and words have about the same chance.
    """
    pieces = words(sequences)
    owner = sequences.owner[pieces.first]
    counts = np.bincount(owner, minlength=len(sequences.lengths))  # words of each sequence
    first = np.cumsum(counts) - counts
    # The lengths of as many spans as there are words, which is enough, and where in the sequence they begin.
    bounds = np.cumsum(shares) / np.sum(shares)
    draw = draws.uniform("length", sequences.index[owner], np.arange(len(owner)) - first[owner])
    lengths = 1 + np.searchsorted(bounds[:-1], draw, side="right")
    begin = np.cumsum(lengths) - lengths
    begin -= np.append(begin, 0)[first][owner]
    inside = begin < counts[owner]
    fresh = runs(sequences, pieces)
    fresh[first[owner[inside]] + begin[inside]] = True
    unit = pieces.first[fresh][np.cumsum(fresh) - 1]
    return Units(pieces.first, pieces.sizes, unit)


def phrases(sequences: Sequences, known: Phrases) -> Units:
    """Words, and known phrases as if they were words (Sun et al., 2019)."""
    pieces = words(sequences)
    found = known.find(sequences.ids, pieces.first, pieces.sizes, runs(sequences, pieces))
    inside = np.zeros(len(found) + 1, dtype=np.int64)  # +1 where the later words of a phrase begin, -1 where they end
    begins = np.flatnonzero(found > 1)
    inside[begins + 1] += 1
    inside[begins + found[begins]] -= 1
    kept = np.cumsum(inside[:-1]) == 0
    ends = pieces.first + pieces.sizes
    last = np.arange(len(found)) + found - 1
    first = pieces.first[kept]
    return Units(first, ends[last[kept]] - first, first)


def choose(sequences: Sequences, rate: float, draws: Draws, units: Units | None = None) -> Array:
    """(m,) tokens to hide, rising: about `rate` of each sequence, special ones never.

    The aim is round(rate · length), at least 1. Tokens reach it; pieces of several tokens stay within it, so that there are
    sometimes fewer.
    """
    single = units is None
    units = tokens(sequences) if units is None else units
    offsets, owner = sequences.offsets, sequences.owner[units.first]
    # Pieces lie in the order of their sequences before and after they are shuffled within each.
    place = units.first - offsets[owner]
    by_unit = place if single else units.unit - offsets[owner]
    chance = hashed(draws.seed, "choose", draws.epoch, sequences.index[owner], by_unit) >> np.uint64(40)
    # One key to sort by is much faster than three: sequence, 24 random bits, place.
    keys = (owner.astype(np.uint64) << np.uint64(44)) | (chance << np.uint64(20)) | place.astype(np.uint64)
    keys.sort()
    shuffled = offsets[owner] + (keys & np.uint64((1 << 20) - 1)).astype(np.int64)
    room = np.zeros(len(sequences.ids), dtype=np.int64)
    room[units.first] = units.sizes
    sizes = room[shuffled]
    lengths = np.bincount(owner, weights=units.sizes, minlength=len(sequences.lengths)).astype(np.int64)
    left = np.where(lengths > 0, np.maximum(1, np.round(rate * lengths)), 0).astype(np.int64)
    taken = np.zeros(len(sizes), dtype=bool)
    for _ in range(1 if single else PASSES):
        fits = np.flatnonzero(~taken & (sizes <= left[owner]))
        mine = owner[fits]
        running = np.cumsum(sizes[fits])
        before = np.append(0, running)[np.searchsorted(mine, np.arange(len(left)))]
        fits = fits[running - before[mine] <= left[mine]]
        taken[fits] = True
        left -= np.bincount(owner[fits], weights=sizes[fits], minlength=len(left)).astype(np.int64)
    chosen = shuffled[taken] if single else spans_to_indices(shuffled[taken], sizes[taken])
    chosen.sort()
    return chosen


def join(sequences: Sequences, at: Array) -> Array:
    """(m,) the first of the neighbors that each chosen token is hidden together with."""
    fresh = starts(sequences)[at]
    fresh[1:] |= at[1:] != at[:-1] + 1
    fresh[:1] = True
    return at[fresh][np.cumsum(fresh) - 1]


def hide(
    sequences: Sequences,
    at: Array,
    tokenizer: Tokenizer,
    draws: Draws,
    *,
    masked: float,
    swapped: float,
    together: Array | None = None,
) -> Array:
    """Of the chosen tokens, turn a share to [MASK] and another to random tokens; the rest stay. Returns the originals.

    Fates are drawn for each token, or for the first of those hidden `together`.
    """
    mask = tokenizer.role("mask")
    original = sequences.ids[at]
    owner = sequences.owner[at]
    sequence, place = sequences.index[owner], at - sequences.offsets[owner]
    fate = draws.uniform("fate", sequence, place if together is None else together - sequences.offsets[owner])
    sequences.ids[at[fate < masked]] = mask
    swap = np.flatnonzero((fate >= masked) & (fate < masked + swapped))
    plain = np.flatnonzero(~tokenizer.specials)  # random tokens are never special ones
    sequences.ids[at[swap]] = plain[draws.integers(len(plain), "swap", sequence[swap], place[swap])]
    return original


def check_share(name: str, **shares: float | None) -> None:
    """Refuse what is no share of something: more than 0, at most 1."""
    for option, value in shares.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value <= 1):
            raise PretuneError(f"{name}: {option}={value} is no share; give more than 0 and at most 1")


def geometric(p: float, longest: int) -> Array:
    """Shares of the lengths 1 … longest that fall by a factor of 1 - p each (SpanBERT)."""
    return p * (1 - p) ** np.arange(longest)


def inverse(longest: int) -> Array:
    """Shares of the lengths 1 … longest in proportion to 1/n (ALBERT)."""
    return 1 / np.arange(1.0, longest + 1)
