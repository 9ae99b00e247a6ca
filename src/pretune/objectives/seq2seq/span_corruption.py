"""Span corruption (Raffel et al., 2020, T5): spans are replaced by sentinels, and the decoder writes the spans.

text    Thank you for inviting me to your party last week.
source  Thank you <X> me to your party <Y> week.
target  <X> for inviting <Y> last <Z>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pretune.objectives.objective import Data
from pretune.objectives.registry import register_objective
from pretune.objectives.segment_ops import (
    segment_cumsum,
    segment_ids,
    segment_positions,
    segment_sample,
    segment_starts,
)
from pretune.objectives.seq2seq.source_target import (
    MAX_TEMPLATE_TOKENS,
    FlatTexts,
    Seq2Seq,
    check_fraction,
    count_special_items,
    make_source_and_target,
    side_packings,
    strip_template,
    text_epoch,
    with_target_side,
)
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.spans import span_indices
from pretune.text.tokenizers.tokenizer import Tokenizer


@register_objective
@dataclass(frozen=True)
class SpanCorruption(Seq2Seq):
    """Span corruption: a share `noise_density` of the tokens is replaced, in spans of `mean_span_length` on average.

    All placements of spans are equally likely. The target ends with one more sentinel, as in the paper. T5's released
    code has no last sentinel, never starts a text with a span, and always ends it with one.
    """

    noise_density: float = 0.15
    mean_span_length: float = 3.0

    name: ClassVar[str] = "spans"

    def __post_init__(self) -> None:
        check_fraction(self.name, "noise_density", self.noise_density)
        if self.mean_span_length < 1:
            raise PretuneError(
                f"spans(mean_span_length={self.mean_span_length:g}): spans have at least one token; give 1 or more"
            )

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Cut documents into spans of whole sentences; raise an error if the tokenizer has too few sentinel tokens."""
        template = with_target_side(data.template)
        text_length = packing.length - template.num_special_tokens(pair=False)
        hidden, count = self.amounts(np.array([max(1, text_length)]))
        need, has = int(count[0]) + 1, count_sentinels(data.tokenizer)
        if need > has:
            raise PretuneError(
                f"objective 'spans': sequences of {packing.length} tokens need {need} sentinels, and this tokenizer has {has}; "
                f"train a tokenizer with `pretune tokenizer train --extra-ids {need}`, or set a smaller batch.max_length"
            )
        longest = int(hidden[0]) + need + count_special_items(template.target) - 1
        return text_epoch(data, packing, draws, spare=max(0, longest - packing.length))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Replace random spans of the source by sentinels; the target has each sentinel followed by its span."""
        texts = strip_template(sequences)
        starts, lengths, counts = self.choose(texts.lengths, draws, sequences.index)
        source, target = replace_by_sentinels(
            texts, starts, lengths, counts, sentinels(tokenizer, int(counts.max(initial=0)) + 1)
        )
        return make_source_and_target(self.name, sequences, source, target, tokenizer)

    def amounts(self, lengths: Array) -> tuple[Array, Array]:
        """Return the number of tokens and of spans to replace in each text, (b,) each, given the texts' lengths."""
        hidden = np.clip(np.round(self.noise_density * lengths), 1, np.maximum(1, lengths - 1)).astype(np.int64)
        spans = np.maximum(1, np.round(hidden / self.mean_span_length)).astype(np.int64)
        # There is at least one token between any two spans.
        return hidden, np.minimum(spans, np.minimum(hidden, lengths - hidden + 1))

    def choose(self, lengths: Array, draws: EpochRandom, index: Array) -> tuple[Array, Array, Array]:
        """Draw the spans to replace; return their starts and lengths, (s,) each, and the number of spans per text.

        A start is a position in its text, from 0. `lengths` (b,) are the lengths of the texts, `index` (b,) their
        numbers, and the numbers of spans are (b,), too.
        """
        hidden, counts = self.amounts(lengths)
        gaps = lengths - hidden + 1
        cut = segment_sample(hidden - 1, counts - 1, draws, "cuts of spans", index)
        gap = segment_sample(gaps, counts, draws, "places of spans", index)
        number = np.flatnonzero(gap) - np.repeat(segment_starts(gaps), counts)  # visible tokens before each span
        # A span ends at each cut, and the last span with the last replaced token.
        ends = np.empty(int(counts.sum()), dtype=np.int64)
        last = np.zeros(len(ends), dtype=bool)
        last[np.cumsum(counts) - 1] = True
        ends[last] = hidden
        ends[~last] = segment_positions(hidden - 1)[cut] + 1
        first = np.concatenate([[0], ends[:-1]])
        first[segment_starts(counts)] = 0
        return number + first, ends - first, counts

    def sides(self, packing: Packing) -> tuple[Packing, Packing]:
        """Return the batch limits of source and target.

        They include a margin, because the numbers of spans and of replaced tokens are rounded in each sequence.
        """
        sequences = min(packing.sequences, packing.tokens)
        shrinks = self.noise_density * (1 - 1 / self.mean_span_length)
        read = min(packing.tokens, (1 - shrinks) * packing.tokens + (2 + MAX_TEMPLATE_TOKENS) * sequences)
        written = (
            self.noise_density * (1 + 1 / self.mean_span_length) * packing.tokens
            + (4 + MAX_TEMPLATE_TOKENS) * sequences
        )
        hidden, count = self.amounts(np.array([packing.length]))
        longest = min(packing.length, int(hidden[0] + count[0]) + 1 + MAX_TEMPLATE_TOKENS)
        return side_packings(packing, (read, packing.length), (written, longest))

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term: one per target token."""
        return {self.name: self.sides(packing)[1].tokens}


def replace_by_sentinels(
    texts: FlatTexts, starts: Array, lengths: Array, counts: Array, sentinel: Array
) -> tuple[FlatTexts, FlatTexts]:
    """Replace spans of texts by sentinels; return the sources and the targets.

    `starts` and `lengths` (s,) describe the spans, with starts relative to their texts; text i has counts[i] of them.
    The target of a text is each sentinel followed by the span that it replaces, and one last sentinel. `sentinel` has
    the sentinels' token ids.
    """
    owner, number = segment_ids(counts), segment_positions(counts)
    begins = segment_starts(texts.lengths)[owner] + starts
    hidden = span_indices(begins, lengths)
    kept = np.ones(len(texts.ids), dtype=bool)
    kept[hidden] = False
    kept[begins] = True
    left = texts.ids.copy()
    left[begins] = sentinel[number]
    shrunk = np.bincount(owner, weights=lengths - 1, minlength=len(texts.lengths)).astype(np.int64)
    source = FlatTexts(left[kept], texts.lengths - shrunk)

    sizes = np.bincount(owner, weights=lengths + 1, minlength=len(texts.lengths)).astype(np.int64) + 1
    ids = np.empty(int(sizes.sum()), dtype=np.int64)
    # where the sentinel of each span goes
    at = segment_starts(sizes)[owner] + segment_cumsum(lengths + 1, counts) - (lengths + 1)
    ids[at] = sentinel[number]
    ids[span_indices(at + 1, lengths)] = texts.ids[hidden]
    ids[np.cumsum(sizes) - 1] = sentinel[counts]
    return source, FlatTexts(ids, sizes)


def count_sentinels(tokenizer: Tokenizer) -> int:
    """Return the number of sentinel tokens of a tokenizer, which are numbered from 0."""
    count = 0
    while tokenizer.has_role(f"sentinel {count}"):
        count += 1
    return count


def sentinels(tokenizer: Tokenizer, count: int) -> Array:
    """Return the token ids of the first `count` sentinels of a tokenizer."""
    return np.array([tokenizer.role(f"sentinel {number}") for number in range(count)], dtype=np.int64)
