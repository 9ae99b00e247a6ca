"""Choosing what to hide, and hiding it: tokens, whole words, spans of words, n-grams or phrases.

Text is cut into units, units are taken in random order until their share of a sequence is reached. A unit is taken piece by
piece (a span word by word), so that one that no longer fits is cut short; what has one piece alone is taken whole or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws, hashed_on
from pretune.text.packing.sequences import Sequences
from pretune.text.spans import spans_to_indices
from pretune.text.tokenizers.phrases import Phrases
from pretune.text.tokenizers.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
_PLACE = np.uint64((1 << 20) - 1)  # the bits of a key that are a place in a sequence
PASSES = 2  # over the pieces: what is left when one does not fit goes to smaller ones that come later


@dataclass(frozen=True)
class Units:
    """Text in units: pieces in order, those of one unit next to one another."""

    first: Array  # (k,) first token of each piece
    sizes: Array  # (k,) tokens of each piece
    unit: Array  # (k,) first token of the unit it belongs to


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
    if units is None:
        return choose_tokens(sequences, rate, draws)
    offsets, bounds = sequences.offsets, np.searchsorted(units.first, sequences.offsets)
    owner = np.repeat(np.arange(len(sequences.lengths)), np.diff(bounds))
    shuffled = shuffle(sequences, units.first, units.unit, bounds, draws)
    shuffled = offsets[owner] + (shuffled & _PLACE).astype(np.int64)
    room = np.zeros(len(sequences.ids), dtype=np.int64)
    room[units.first] = units.sizes
    sizes = room[shuffled]
    left = aims(rate, np.diff(np.append(0, np.cumsum(units.sizes))[bounds]))
    taken = np.zeros(len(sizes), dtype=bool)
    for _ in range(PASSES):
        fits = np.flatnonzero(~taken & (sizes <= left[owner]))
        mine = owner[fits]
        running = np.cumsum(sizes[fits])
        before = np.append(0, running)[np.searchsorted(mine, np.arange(len(left)))]
        fits = fits[running - before[mine] <= left[mine]]
        taken[fits] = True
        left -= np.bincount(owner[fits], weights=sizes[fits], minlength=len(left)).astype(np.int64)
    chosen = spans_to_indices(shuffled[taken], sizes[taken])
    chosen.sort()
    return chosen


def choose_tokens(sequences: Sequences, rate: float, draws: Draws) -> Array:
    """The same where every token is a unit: of each sequence's shuffled tokens, as many of the first as are wanted."""
    free = np.flatnonzero(~sequences.columns["special"])
    bounds = np.searchsorted(free, sequences.offsets)
    wanted = aims(rate, np.diff(bounds))
    keys = shuffle(sequences, free, free, bounds, draws)[spans_to_indices(bounds[:-1], wanted)]
    chosen = np.repeat(sequences.offsets[:-1], wanted) + (keys & _PLACE).astype(np.int64)
    chosen.sort()
    return chosen


def shuffle(sequences: Sequences, first: Array, unit: Array, bounds: Array, draws: Draws) -> Array:
    """(k,) pieces in random order within each sequence, those of a unit together; the lower bits are places.

    Sequence i has the pieces from bounds[i] to bounds[i + 1], before and after.
    """
    counts = np.diff(bounds)
    begins = np.repeat(sequences.offsets[:-1], counts)
    # One key to sort by is much faster than three: sequence, 24 random bits, place.
    keys = hashed_on(np.repeat(draws.hashed("choose", sequences.index), counts), unit - begins)
    keys >>= np.uint64(40)
    keys <<= np.uint64(20)
    keys |= np.repeat(np.arange(len(counts), dtype=np.uint64) << np.uint64(44), counts)
    keys |= (first - begins).view(np.uint64)
    keys.sort()
    return keys


def aims(rate: float, lengths: Array) -> Array:
    """(b,) how many tokens to hide of so many."""
    return np.where(lengths > 0, np.maximum(1, np.round(rate * lengths)), 0).astype(np.int64)


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
            raise PretuneError(
                f"{name}: {option}={value if isinstance(value, str) else format(value, 'g')} is no share; give more than 0 and at most 1"
            )


def geometric(p: float, longest: int) -> Array:
    """Shares of the lengths 1 … longest that fall by a factor of 1 - p each (SpanBERT)."""
    return p * (1 - p) ** np.arange(longest)


def inverse(longest: int) -> Array:
    """Shares of the lengths 1 … longest in proportion to 1/n (ALBERT)."""
    return 1 / np.arange(1.0, longest + 1)
