"""Build batches from tokenized texts, with NumPy arrays as intermediate steps.

An Arrangement lists which spans of a token source make up each sequence of an epoch; `Arrangement.take` fills the
template with the tokens of some sequences; `collate` builds the Batch that a model takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pretune.packed import Batch, Capacity, pack, pack_targets
from pretune.runtime.arrays import Array
from pretune.text.packing.batch_planning import PackPlan, plan_packs
from pretune.text.spans import span_indices
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.nn.attention.patterns import Pattern
    from pretune.runtime.randomness import EpochRandom


class TokenSource(Protocol):
    """A source of token ids from which spans are read: a tokenized corpus (Store), or tokenized rows in memory."""

    def gather(self, starts: Array, lengths: Array) -> Array:
        """Return the token ids of spans, concatenated, given the first token and the length of each span."""

    def gather_words(self, starts: Array, lengths: Array) -> Array:
        """Return a mask of the tokens that begin a word, for the concatenated spans with given starts and lengths."""

    def unknown_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Return the out-of-vocabulary words in the concatenated spans with given starts and lengths.

        The first array has their positions, counted in the concatenation of the spans, the second one their character
        ids (for ELMo), with one row per word.
        """


class SecondSide(Protocol):
    """A source of further sequences, one per sequence of an arrangement, such as the regions of images."""

    @property
    def lengths(self) -> Array:
        """Return the length of each sequence, (sequences,)."""

    def choose(self, chosen: Array) -> SecondSide:
        """Return a source that consists of the sequences at the indices `chosen`, which may repeat."""

    def take(self, chosen: Array) -> Sequences:
        """Return the sequences at the indices `chosen` as arrays."""


class LazyColumns(dict[str, Array]):
    """A dictionary of arrays with one value per token, some of which are computed on first access.

    `ready` are the arrays that exist already; `late` maps the names of the others to functions that compute them.
    """

    def __init__(self, ready: Mapping[str, Array], **late: Callable[[], Array]) -> None:
        super().__init__(ready)
        self.late = late

    def __missing__(self, name: str) -> Array:
        self[name] = self.late[name]()
        return self[name]


@dataclass
class Sequences:
    """The sequences of a batch as concatenated NumPy arrays, for b sequences with n tokens in total.

    `ids` (n,) are the token ids, `lengths` (b,) the numbers of tokens, and `index` (b,) the index of each sequence in
    the epoch, which seeds its random draws. `columns` has further arrays per token, `labels` further arrays per
    sequence, and `targets` maps each loss term to positions, targets and optionally weights. `second` is the target
    side of an encoder-decoder, or the regions of images.
    """

    ids: Array  # (n,) int64
    lengths: Array  # (b,)
    index: Array  # (b,) index of each sequence in the epoch, which seeds its random draws
    columns: dict[str, Array] = field(default_factory=dict)  # (n,) per token: special, word, segment, …
    labels: dict[str, Array] = field(default_factory=dict)  # (b,) per sequence
    targets: dict[str, tuple[Array, ...]] = field(default_factory=dict)  # loss term → positions, targets[, weights]
    pattern: Pattern | None = None
    positions: Array | None = None
    second: Sequences | None = None  # the target side of an encoder-decoder, or the regions of images
    frame: tuple[str, ...] = ()  # the template's `target`, for objectives that build the target side

    @cached_property
    def offsets(self) -> Array:
        """Return the index of the first token of each of the b sequences, and the number of all tokens, (b + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def owner(self) -> Array:
        """Return, for each of the n tokens, the index in the batch of the sequence that it belongs to, (n,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def index_in_sequence(self) -> Array:
        """Return, for each of the n tokens, its index within its sequence, (n,)."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def choose_tokens(self, kept: Array) -> Sequences:
        """Return the sequences with only the tokens at which the mask `kept` (n,) is True, and without targets."""
        return Sequences(
            ids=self.ids[kept],
            lengths=np.bincount(self.owner[kept], minlength=len(self.lengths)),
            index=self.index,
            columns={name: values[kept] for name, values in self.columns.items()},
            labels=self.labels,
            pattern=self.pattern,
        )


@dataclass
class Arrangement:
    """The sequences of an epoch; each consists of one or more texts, which are spans of a source of token ids.

    For m sequences of up to k texts, `starts` and `spans` (m, k) have the first token and the length of each text, 0
    for missing texts. `labels` has arrays per sequence, (m,), `columns` arrays per text, (m, k), and `tokens` arrays
    per token of the source. `truncated` counts the truncated texts. `second` has sequences that the model reads beside
    the texts, such as the regions of images.
    """

    source: TokenSource
    tokenizer: Tokenizer
    template: Template
    starts: Array  # (m, k) first token of each text
    spans: Array  # (m, k) length of each text; 0 for missing texts, which must come last
    labels: dict[str, Array] = field(default_factory=dict)  # (m,) per sequence
    truncated: int = 0  # number of truncated texts
    columns: dict[str, Array] = field(default_factory=dict)  # (m, k) value of a column per text
    # (source tokens,) or (source tokens, c): values per token; -1 for special tokens, 0 if the values are real numbers
    tokens: dict[str, Array] = field(default_factory=dict)
    second: SecondSide | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Array:
        """Return the number of tokens of each sequence, (sequences,), including special tokens.

        With a second side, it is the length of the longer of both, so that both sides of a pack fit into its limits.
        """
        total = self.spans.sum(1) + self.template.num_special_tokens(pair=False)
        if self.spans.shape[1] > 1:
            total = total + (self.spans[:, 1:] > 0).sum(1) * (len(self.template.pair) - 1)
        return np.asarray(total) if self.second is None else np.maximum(total, self.second.lengths)

    def choose(self, chosen: Array) -> Arrangement:
        """Return an arrangement that consists of the sequences at the indices `chosen`, which may repeat."""
        labels, columns = ({name: x[chosen] for name, x in table.items()} for table in (self.labels, self.columns))
        second = None if self.second is None else self.second.choose(chosen)
        starts, spans = self.starts[chosen], self.spans[chosen]
        return replace(self, starts=starts, spans=spans, labels=labels, columns=columns, second=second)

    def take(self, chosen: Array) -> Sequences:
        """Fill the template with the tokens of the sequences at the indices `chosen`, and return them as arrays."""
        starts, spans = self.starts[chosen], self.spans[chosen]
        count = len(chosen)
        texts = 1 + max((part for part in range(1, spans.shape[1]) if (spans[:, part] > 0).any()), default=0)
        items = self.template.items(texts)
        part_of, segments = (np.array([item[i] for item in items]) for i in (1, 2))
        sizes = self.template.sizes(spans[:, :texts])
        ends = np.cumsum(sizes.ravel()).reshape(sizes.shape)
        begins = ends - sizes
        total = int(ends[-1, -1]) if count else 0
        ids = np.empty(total, dtype=np.int64)
        special = np.zeros(total, dtype=bool)
        texts_at = []  # positions of each text in the result, and its spans in the source
        for number, (item, part, _) in enumerate(items):
            if item in "AB":
                at = span_indices(begins[:, number], sizes[:, number])
                texts_at.append((at, starts[:, part], spans[:, part]))
                ids[at] = self.source.gather(starts[:, part], spans[:, part])
            else:
                at = begins[:, number][sizes[:, number] > 0]
                ids[at] = self.tokenizer.role(item)
                special[at] = True

        def word() -> Array:
            mask = np.ones(total, dtype=bool)
            for at, first, size in texts_at:
                mask[at] = self.source.gather_words(first, size)
            return mask

        columns = LazyColumns({"special": special, "segment": np.zeros(total, dtype=np.int64)}, word=word)
        if self.tokenizer.characters:
            columns["characters"] = self.tokenizer.token_characters[ids]
            for at, first, size in texts_at:
                unknown, spellings = self.source.unknown_words(first, size)
                if len(unknown):
                    columns["characters"][at[unknown]] = spellings
        values = {name: value[chosen][:, part_of] for name, value in self.columns.items()}  # (count, items)
        if segments.any():
            segment = np.where(segments > 1, segments, values.get("segment", segments))
            values["segment"] = np.broadcast_to(segment, sizes.shape)
        for name, value in values.items():
            columns[name] = np.repeat(value.ravel(), sizes.ravel())
        for name, value in self.tokens.items():
            whole = np.issubdtype(value.dtype, np.integer)
            columns[name] = np.full(
                (total, *value.shape[1:]), -1 if whole else 0, dtype=np.int64 if whole else value.dtype
            )
            for at, first, size in texts_at:
                columns[name][at] = value[span_indices(first, size)]
        sequences = Sequences(
            ids=ids,
            lengths=sizes.sum(1),
            index=np.asarray(chosen),
            columns=columns,
            labels={name: values[chosen] for name, values in self.labels.items()},
        )
        if self.second is not None:
            sequences.second = self.second.take(chosen)
        elif self.template.target:
            # By default the decoder reads the same tokens, shifted by one.
            shifted = np.concatenate([ids[:1], ids[:-1]])
            shifted[sequences.offsets[:-1]] = self.tokenizer.role(self.template.target[0])
            sequences.second = Sequences(shifted, sequences.lengths, sequences.index)
        return sequences


UNLIMITED = 1 << 30


class Epoch(Protocol):
    """The batches of an epoch; each batch is a pack, that is, sequences concatenated without padding."""

    def __len__(self) -> int: ...

    def sizes(self) -> Array:
        """Return the number of sequences in each pack (batch) of the epoch, (packs,)."""

    def pack(self, index: int) -> Sequences:
        """Return the sequences of the pack (batch) with the given index."""


@dataclass(frozen=True)
class Packing:
    """The limits for a pack, which is a batch of sequences that are concatenated without padding.

    `tokens` and `sequences` are the maxima per pack, and `length` is that of a single sequence. With `fixed`, all packs
    have the same shape; padding sequences then count toward `sequences`, and `rows` limits the other sequences. In
    stateful training, each of the `packs_per_step` packs of a step continues the texts of one pack of the step before.
    """

    tokens: int  # maximum per pack
    length: int  # maximum tokens of a sequence
    sequences: int = UNLIMITED  # maximum per pack
    packs_per_step: int = 1  # for stateful training, where packs of consecutive steps continue each other
    fixed: bool = False  # whether packs have fixed shapes; padding then counts toward `sequences`
    rows: int | None = None  # maximum sequences per pack that are not padding

    def capacity(self, targets: Mapping[str, int]) -> Capacity | None:
        """Return the fixed shape of all packs, given the maximum number of targets per loss; None if shapes vary."""
        return Capacity(self.tokens, self.sequences, self.length, dict(targets)) if self.fixed else None


@dataclass
class PlannedEpoch:
    """An epoch in which the assignment of sequences to packs (batches without padding) is planned in advance."""

    arrangement: Arrangement
    plan: PackPlan

    def __len__(self) -> int:
        return len(self.plan)

    def sizes(self) -> Array:
        """Return the number of sequences in each pack (batch) of the epoch, (packs,)."""
        return np.diff(self.plan.bounds)

    def pack(self, index: int) -> Sequences:
        """Return the sequences of the pack (batch) with the given index."""
        return self.arrangement.take(self.plan.pack(index))


def plan_epoch(arrangement: Arrangement, packing: Packing, draws: EpochRandom, shuffle: bool = True) -> PlannedEpoch:
    """Assign the sequences of an epoch to packs (batches without padding), in random order if `shuffle` is True."""
    groups = arrangement.labels.get("group")
    return PlannedEpoch(arrangement, plan_lengths(arrangement.lengths, packing, draws, shuffle, groups))


def plan_lengths(
    lengths: Array, packing: Packing, draws: EpochRandom, shuffle: bool = True, groups: Array | None = None
) -> PackPlan:
    """Assign sequences with given lengths to packs (batches without padding), in random order if `shuffle` is True.

    `groups` (sequences,) has an integer per sequence: sequences with equal integers stay in the same pack.
    """
    return plan_packs(
        lengths,
        tokens=packing.tokens,
        sequences=packing.sequences,
        seed=draws.seed,
        epoch=draws.epoch if draws.order_epoch is None else draws.order_epoch,
        shuffle=shuffle,
        filler=packing.length if packing.fixed else None,
        rows=packing.rows,
        groups=groups,
    )


# Columns that models read; the others are used on the host only.
MODEL_COLUMNS = (
    "segment", "language", "task", "order", "stream", "prefix", "document_start", "span", "global", "characters", "prompt", "features",
    "locations", "temperature",
)  # fmt: skip


def add_global_starts(sequences: Sequences) -> Sequences:
    """Mark the first token of each sequence for global attention (as in Longformer), and return the sequences."""
    sequences.columns["global"] = sequences.index_in_sequence == 0
    return sequences


def collate(sequences: Sequences, capacity: Capacity | None = None, filler: int = 0) -> Batch:
    """Convert sequences to a Batch of tensors; pad it with the token id `filler` to the shape `capacity`, if given."""
    sides = [sequences] if sequences.second is None else [sequences, sequences.second]
    capacities = [capacity] if capacity is None or capacity.second is None else [capacity, capacity.second]
    packed = tuple(
        pack(
            side.ids,
            side.lengths,
            positions=side.positions,
            columns={name: side.columns[name] for name in MODEL_COLUMNS if name in side.columns},
            pattern=side.pattern,
            capacity=capacities[min(number, len(capacities) - 1)],
            filler=filler,
        )
        for number, side in enumerate(sides)
    )
    targets, counts = {}, {"tokens": float(sum(len(side.ids) for side in sides))}
    for side in sides:
        for term, (at, target, *weights) in side.targets.items():
            size = None if capacity is None else capacity.targets.get(term, capacity.tokens)
            weight = weights[0] if weights else None
            targets[term] = pack_targets(at, target, weight, size)
            counts[term] = float(len(at) if weight is None else weight.sum())
    lengths = tuple(side.lengths for side in sides)
    return Batch(packed, targets, counts, rows=sequences.index, lengths=lengths)
