"""Masking: choose tokens, whole words, spans of words, n-grams, or phrases, and replace them.

Text is cut into units, and units are chosen in random order until the masking rate of the sequence is reached. A unit
consists of one or more pieces, as a span consists of words. Its pieces are chosen one by one, so a span that no longer
fits is shortened; a unit of one piece is chosen whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom, extend_random_bits
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.spans import span_indices
from pretune.text.tokenizers.phrase_matching import PhraseMatcher
from pretune.text.tokenizers.tokenizer import Tokenizer

_PLACE = np.uint64((1 << 20) - 1)  # the bits of a sorting key that hold the position in a sequence
PASSES = 2  # over the pieces: when one does not fit, the second pass fills the rest with smaller ones


@dataclass(frozen=True)
class MaskingUnits:
    """Text divided into units to mask, such as spans; each unit consists of adjacent pieces, such as words.

    `first` and `sizes` (k,) are the first token and the number of tokens of each piece; `unit` (k,) is the first token
    of the unit that the piece belongs to.
    """

    first: Array  # (k,) first token of each piece
    sizes: Array  # (k,) tokens of each piece
    unit: Array  # (k,) first token of the unit it belongs to


def word_units(sequences: Sequences) -> MaskingUnits:
    """Return whole words as units to mask.

    Where a sequence starts inside a word, the rest of this word is a unit, too.
    """
    special = sequences.columns["special"]
    bounds = special | sequences.columns["word"] | sequence_starts(sequences)
    bounds[1:] |= special[:-1]
    edges = np.append(np.flatnonzero(bounds), len(special))
    sizes = np.diff(edges)
    is_text = ~special[edges[:-1]]
    first = edges[:-1][is_text]
    return MaskingUnits(first, sizes[is_text], first)


def run_starts(sequences: Sequences, pieces: MaskingUnits) -> Array:
    """Return a mask (k,), True for those of k pieces (such as words) that start a sequence or follow special tokens."""
    begins = sequence_starts(sequences)[pieces.first]
    begins[1:] |= pieces.first[1:] != pieces.first[:-1] + pieces.sizes[:-1]
    begins[:1] = True
    return begins


def sequence_starts(sequences: Sequences) -> Array:
    """Return a mask over all tokens that is True at the first token of each sequence."""
    begins = np.zeros(len(sequences.ids), dtype=bool)
    begins[sequences.offsets[:-1][sequences.lengths > 0]] = True
    return begins


def span_units(sequences: Sequences, draws: EpochRandom, shares: Array) -> MaskingUnits:
    """Return random spans of whole words as units to mask.

    shares[n - 1] is the share of the spans that have n words. No span crosses a special token. All words are about
    equally likely to be masked.
    """
    pieces = word_units(sequences)
    owner = sequences.owner[pieces.first]
    counts = np.bincount(owner, minlength=len(sequences.lengths))  # words of each sequence
    first = np.cumsum(counts) - counts
    # Draw one span length per word, which is always enough, and compute where in the sequence each span begins.
    bounds = np.cumsum(shares) / np.sum(shares)
    draw = draws.uniform("length", sequences.index[owner], np.arange(len(owner)) - first[owner])
    lengths = 1 + np.searchsorted(bounds[:-1], draw, side="right")
    begin = np.cumsum(lengths) - lengths
    begin -= np.append(begin, 0)[first][owner]
    inside = begin < counts[owner]
    starts_unit = run_starts(sequences, pieces)
    starts_unit[first[owner[inside]] + begin[inside]] = True
    unit = pieces.first[starts_unit][np.cumsum(starts_unit) - 1]
    return MaskingUnits(pieces.first, pieces.sizes, unit)


def phrase_units(sequences: Sequences, known: PhraseMatcher) -> MaskingUnits:
    """Return phrases, and every word outside of them, as units to mask (Sun et al., 2019, ERNIE).

    The phrases are those that `known` finds in the sequences.
    """
    pieces = word_units(sequences)
    found = known.find(sequences.ids, pieces.first, pieces.sizes, run_starts(sequences, pieces))
    inside = np.zeros(len(found) + 1, dtype=np.int64)  # +1 where the later words of a phrase begin, -1 where they end
    begins = np.flatnonzero(found > 1)
    inside[begins + 1] += 1
    inside[begins + found[begins]] -= 1
    kept = np.cumsum(inside[:-1]) == 0
    ends = pieces.first + pieces.sizes
    last = np.arange(len(found)) + found - 1
    first = pieces.first[kept]
    return MaskingUnits(first, ends[last[kept]] - first, first)


def choose_masked(sequences: Sequences, rate: float, draws: EpochRandom, units: MaskingUnits | None = None) -> Array:
    """Return the sorted indices (m,) of tokens to mask: about a share `rate` of each sequence, no special tokens.

    `units` are the units to mask (None: single tokens). They are taken in random order, up to max(1, round(rate · n))
    tokens of each sequence, where n is the number of its maskable tokens.
    """
    if units is None:
        return choose_masked_tokens(sequences, rate, draws)
    offsets, bounds = sequences.offsets, np.searchsorted(units.first, sequences.offsets)
    owner = np.repeat(np.arange(len(sequences.lengths)), np.diff(bounds))
    shuffled = shuffle_pieces(sequences, units.first, units.unit, bounds, draws)
    shuffled = offsets[owner] + (shuffled & _PLACE).astype(np.int64)
    size_at = np.zeros(len(sequences.ids), dtype=np.int64)
    size_at[units.first] = units.sizes
    sizes = size_at[shuffled]
    left = mask_counts(rate, np.diff(np.append(0, np.cumsum(units.sizes))[bounds]))
    taken = np.zeros(len(sizes), dtype=bool)
    for _ in range(PASSES):
        fits = np.flatnonzero(~taken & (sizes <= left[owner]))
        fits_owner = owner[fits]
        running = np.cumsum(sizes[fits])
        before = np.append(0, running)[np.searchsorted(fits_owner, np.arange(len(left)))]
        fits = fits[running - before[fits_owner] <= left[fits_owner]]
        taken[fits] = True
        left -= np.bincount(owner[fits], weights=sizes[fits], minlength=len(left)).astype(np.int64)
    chosen = span_indices(shuffled[taken], sizes[taken])
    chosen.sort()
    return chosen


def choose_masked_tokens(sequences: Sequences, rate: float, draws: EpochRandom) -> Array:
    """Return the sorted indices (m,) of single tokens to mask: a share `rate` of each sequence, no special tokens."""
    free = np.flatnonzero(~sequences.columns["special"])
    bounds = np.searchsorted(free, sequences.offsets)
    wanted = mask_counts(rate, np.diff(bounds))
    keys = shuffle_pieces(sequences, free, free, bounds, draws)[span_indices(bounds[:-1], wanted)]
    chosen = np.repeat(sequences.offsets[:-1], wanted) + (keys & _PLACE).astype(np.int64)
    chosen.sort()
    return chosen


def shuffle_pieces(sequences: Sequences, first: Array, unit: Array, bounds: Array, draws: EpochRandom) -> Array:
    """Shuffle the maskable pieces (tokens or words) of each sequence; return one integer per piece, in the new order.

    The low 20 bits of each integer, of k in all, are the position in its sequence at which the piece starts. Before
    shuffling, sequence i has the pieces bounds[i] to bounds[i + 1] - 1, and `first` (k,) has the index of the first
    token of each piece. Pieces with the same `unit` (k,), such as the words of a span, stay adjacent.
    """
    counts = np.diff(bounds)
    begins = np.repeat(sequences.offsets[:-1], counts)
    # Sorting one key (sequence, 24 random bits, position) is much faster than sorting by three.
    keys = extend_random_bits(np.repeat(draws.random_bits("choose", sequences.index), counts), unit - begins)
    keys >>= np.uint64(40)
    keys <<= np.uint64(20)
    keys |= np.repeat(np.arange(len(counts), dtype=np.uint64) << np.uint64(44), counts)
    keys |= (first - begins).view(np.uint64)
    keys.sort()
    return keys


def mask_counts(rate: float, lengths: Array) -> Array:
    """Return the number of tokens to mask in each sequence, (b,): round(rate · length), but at least 1."""
    return np.where(lengths > 0, np.maximum(1, np.round(rate * lengths)), 0).astype(np.int64)


def max_masked(packing: Packing, rate: float) -> int:
    """Return the maximum number of masked tokens in a batch, given the batch limits `packing` and the masking rate.

    The number of masked tokens is rounded in each sequence, so the maximum can exceed `rate` times all tokens.
    """
    sequences = min(packing.sequences, packing.tokens)
    return min(packing.tokens, int(rate * packing.tokens) + sequences // 2 + 1)


def first_of_run(sequences: Sequences, at: Array) -> Array:
    """Return, for each masked token, the index of the first token in its run of adjacent masked tokens, (m,).

    `at` (m,) are the sorted indices of the masked tokens.
    """
    begins = sequence_starts(sequences)[at]
    begins[1:] |= at[1:] != at[:-1] + 1
    begins[:1] = True
    return at[begins][np.cumsum(begins) - 1]


def mask_tokens(
    sequences: Sequences,
    at: Array,
    tokenizer: Tokenizer,
    draws: EpochRandom,
    *,
    masked: float,
    swapped: float,
    together: Array | None = None,
) -> Array:
    """Replace a share `masked` of the tokens `at` by [MASK] and `swapped` by random tokens; return the original tokens.

    `at` (m,) are token indices. Tokens with the same value in `together` (m,), such as the tokens of a span, share one
    random draw: all become [MASK], all become random tokens, or all stay.
    """
    mask = tokenizer.role("mask")
    original = sequences.ids[at]
    owner = sequences.owner[at]
    sequence, place = sequences.index[owner], at - sequences.offsets[owner]
    fate = draws.uniform("fate", sequence, place if together is None else together - sequences.offsets[owner])
    sequences.ids[at[fate < masked]] = mask
    swap = np.flatnonzero((fate >= masked) & (fate < masked + swapped))
    plain = np.flatnonzero(~tokenizer.specials)  # random tokens are never special tokens
    sequences.ids[at[swap]] = plain[draws.integers(len(plain), "swap", sequence[swap], place[swap])]
    return original


def check_positive_fractions(name: str, **shares: float | None) -> None:
    """Raise an error unless each option of the objective `name` is None or greater than 0 and at most 1.

    The options are given as keyword arguments, such as mask_rate=0.15.
    """
    for option, value in shares.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value <= 1):
            given = value if isinstance(value, str) else format(value, "g")
            raise PretuneError(f"{name}: {option}={given} is not a share; give a number greater than 0 and at most 1")


def check_replacements(name: str, masked: float, swapped: float) -> None:
    """Raise an error that names the objective `name` if the two shares of replaced tokens exceed 1 in total.

    `masked` is the share of tokens that become [MASK], and `swapped` the share that become random tokens.
    """
    if masked + swapped > 1 + 1e-9:
        raise PretuneError(
            f"{name}: mask_replace_prob={masked:g} and random_replace_prob={swapped:g} add up to more than 1; lower one of them"
        )


def geometric_weights(p: float, longest: int) -> Array:
    """Return weights (longest,) of the span lengths 1 to `longest`: geometric with parameter `p` (SpanBERT)."""
    return p * (1 - p) ** np.arange(longest)


def inverse_length_weights(longest: int) -> Array:
    """Return weights (longest,) of the n-gram lengths 1 to `longest`, proportional to 1/n (ALBERT)."""
    return 1 / np.arange(1.0, longest + 1)
