"""Sequences: what an objective arranges from text and corrupts; numpy on the host, end to end like a Packed.

A Template says what stands around the texts (BERT's [CLS] A [SEP] B [SEP]); an Arrangement says which spans of a source make
up each sequence; `take` puts some of them together; `collate` makes the Batch that a model takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pretune.packed import Batch, Capacity, make_targets, pack
from pretune.text.plan import Plan, make_plan
from pretune.text.store import spans_to_indices
from pretune.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.nn.patterns import Pattern
    from pretune.randomness import Draws

Array = np.ndarray[Any, np.dtype[Any]]


class Source(Protocol):
    """Tokens that spans point into: a Store, or labeled rows in memory."""

    def gather(self, starts: Array, lengths: Array) -> Array: ...

    def gather_words(self, starts: Array, lengths: Array) -> Array: ...


@dataclass(frozen=True)
class Template:
    """Roles and texts in order: `single` always, `pair` after it where there is a second text, `last` at the end of either.

    `target` is the decoder's side of an encoder-decoder: it reads all of it but the last and writes all but the first.

    `document` is what running text stands in, where that is something else (GPT-2 ends documents, but no other texts).

    >>> BERT = Template(single=("start", "A", "separator"), pair=("B", "separator"))
    >>> BERT.overhead(pair=True)
    3
    """

    single: tuple[str, ...]
    pair: tuple[str, ...]
    segments: bool = True  # whether what `pair` adds is a segment of its own, and `last` a third; else all is segment 0
    target: tuple[str, ...] = ()
    document: tuple[str, ...] | None = None
    last: tuple[str, ...] = ()

    @property
    def for_documents(self) -> Template:
        """The template of running text."""
        return self if self.document is None else replace(self, single=self.document, document=None)

    def overhead(self, pair: bool) -> int:
        """Tokens that are not the texts' own."""
        return len(self.single) - 1 + (len(self.pair) - 1 if pair else 0) + len(self.last)

    def items(self, pair: bool) -> list[tuple[str, int]]:
        """Roles and texts in order, and the segment of each."""
        parts = (self.single, self.pair if pair else (), self.last)
        return [(item, part if self.segments else 0) for part, items in enumerate(parts) for item in items]


@dataclass
class Sequences:
    """Some sequences end to end, and what has been decided about them so far."""

    ids: Array  # (n,) int64
    lengths: Array  # (b,)
    index: Array  # (b,) which sequences of the epoch these are: a coordinate of every draw
    columns: dict[str, Array] = field(default_factory=dict)  # (n,) special, word, segment …
    labels: dict[str, Array] = field(default_factory=dict)  # (b,) what an arrangement knows of a sequence
    targets: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # term → at, target
    pattern: Pattern | None = None
    positions: Array | None = None
    second: Sequences | None = None  # the target side of an encoder-decoder
    frame: tuple[str, ...] = ()  # the template's `target`, for an objective that makes that side
    pooled: bool = False  # the decoder looks at one vector a source sequence, not at all its states

    @property
    def offsets(self) -> Array:
        """(b + 1,) where each sequence starts."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def owner(self) -> Array:
        """(n,) the place in `index` of the sequence each token belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def place(self) -> Array:
        """(n,) position inside the sequence."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)


@dataclass
class Arrangement:
    """An epoch's sequences as spans of a source: A, and B where there is one."""

    source: Source
    tokenizer: Tokenizer
    template: Template
    starts: Array  # (m, 1 or 2)
    spans: Array  # (m, 1 or 2) lengths; 0 where there is no B
    labels: dict[str, Array] = field(default_factory=dict)  # (m,)
    truncated: int = 0  # how many texts were cut to fit

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Array:
        """(m,) tokens of each sequence, those of the template included."""
        total = self.spans.sum(1) + self.template.overhead(pair=False)
        if self.spans.shape[1] == 2:
            total = total + np.where(self.spans[:, 1] > 0, len(self.template.pair) - 1, 0)
        return np.asarray(total)

    def take(self, chosen: Array) -> Sequences:
        """Put some sequences together."""
        starts, spans = self.starts[chosen], self.spans[chosen]
        count = len(chosen)
        has_pair = spans[:, 1] > 0 if spans.shape[1] == 2 else np.zeros(count, dtype=bool)
        items = self.template.items(bool(has_pair.any()))
        second = range(len(self.template.single), len(items) - len(self.template.last))  # there in pairs alone
        sizes = np.ones((count, len(items)), dtype=np.int64)  # tokens of each item of each sequence
        for number, (item, _) in enumerate(items):
            if item in "AB":
                sizes[:, number] = spans[:, "AB".index(item)]
            elif number in second:
                sizes[:, number] = has_pair
        ends = np.cumsum(sizes.ravel()).reshape(sizes.shape)
        begins = ends - sizes
        total = int(ends[-1, -1]) if count else 0
        ids = np.empty(total, dtype=np.int64)
        special = np.ones(total, dtype=bool)
        word = np.ones(total, dtype=bool)
        segment = np.zeros(total, dtype=np.int64)
        for number, (item, own) in enumerate(items):
            at = spans_to_indices(begins[:, number], sizes[:, number])
            if item in "AB":
                part = "AB".index(item)
                ids[at] = self.source.gather(starts[:, part], spans[:, part])
                word[at] = self.source.gather_words(starts[:, part], spans[:, part])
                special[at] = False
            else:
                ids[at] = self.tokenizer.role(item)
            segment[at] = own
        sequences = Sequences(
            ids=ids,
            lengths=sizes.sum(1),
            index=np.asarray(chosen),
            columns={"special": special, "word": word, "segment": segment},
            labels={name: values[chosen] for name, values in self.labels.items()},
        )
        if self.template.target:
            # A decoder reads the same, one step late, unless an objective has something else for it.
            late = np.concatenate([ids[:1], ids[:-1]])
            late[sequences.offsets[:-1]] = self.tokenizer.role(self.template.target[0])
            sequences.second = Sequences(late, sequences.lengths, sequences.index)
        return sequences


UNLIMITED = 1 << 30


class Epoch(Protocol):
    """An epoch's packs."""

    def __len__(self) -> int: ...

    def sizes(self) -> Array:
        """(packs,) how many sequences each has."""

    def pack(self, index: int) -> Sequences: ...


@dataclass(frozen=True)
class Packing:
    """How sequences are put into packs."""

    tokens: int  # in a pack
    length: int  # of a sequence, at most
    sequences: int = UNLIMITED  # in a pack, at most
    lanes: int = 1  # packs that go through time together, for stateful data
    fixed: bool = False  # shapes are fixed: filler counts among the sequences

    def capacity(self, targets: Mapping[str, int]) -> Capacity | None:
        """The packs' shapes; None where every pack has its own."""
        return Capacity(self.tokens, self.sequences, self.length, dict(targets)) if self.fixed else None


@dataclass
class PlannedEpoch:
    """Arranged sequences in shuffled packs."""

    arrangement: Arrangement
    plan: Plan

    def __len__(self) -> int:
        return len(self.plan)

    def sizes(self) -> Array:
        """(packs,) how many sequences each has."""
        return np.diff(self.plan.bounds)

    def pack(self, index: int) -> Sequences:
        """The sequences of a pack."""
        return self.arrangement.take(self.plan.pack(index))


def plan_epoch(arrangement: Arrangement, packing: Packing, draws: Draws, shuffle: bool = True) -> PlannedEpoch:
    """Shuffle an arrangement into packs."""
    return PlannedEpoch(arrangement, plan_lengths(arrangement.lengths, packing, draws, shuffle))


def plan_lengths(lengths: Array, packing: Packing, draws: Draws, shuffle: bool = True) -> Plan:
    """Shuffle sequences of some lengths into packs."""
    return make_plan(
        lengths,
        tokens=packing.tokens,
        sequences=packing.sequences,
        seed=draws.seed,
        epoch=draws.epoch if draws.reading is None else draws.reading,
        shuffle=shuffle,
        filler=packing.length if packing.fixed else None,
    )


MODEL_COLUMNS = (
    "segment",
    "language",
    "task",
    "order",
    "stream",
    "prefix",
    "fresh",
)  # those a model looks at; the others are ours


def collate(sequences: Sequences, capacity: Capacity | None = None, filler: int = 0) -> Batch:
    """A Batch of the sequences; with a capacity, of fixed shapes."""
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
        for term, (at, target) in side.targets.items():
            room = None if capacity is None else capacity.targets.get(term, capacity.tokens)
            targets[term] = make_targets(at, target, capacity=room)
            counts[term] = float(len(at))
    lengths = tuple(side.lengths for side in sides)
    return Batch(packed, targets, counts, rows=sequences.index, lengths=lengths, pooled=sequences.pooled)
