"""Sequences: what an objective arranges from text and corrupts; numpy on the host, end to end like a Packed.

A Template says what stands around the texts (BERT's [CLS] A [SEP] B [SEP]); an Arrangement says which spans of a source make
up each sequence; `take` puts some of them together; `collate` makes the Batch that a model takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pretune.packed import Batch, Capacity, make_targets, pack
from pretune.text.packing.plan import Plan, make_plan
from pretune.text.store.store import spans_to_indices
from pretune.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pretune.nn.attention.patterns import Pattern
    from pretune.runtime.randomness import Draws

Array = np.ndarray[Any, np.dtype[Any]]


class Source(Protocol):
    """Tokens that spans point into: a Store, or labeled rows in memory."""

    def gather(self, starts: Array, lengths: Array) -> Array: ...

    def gather_words(self, starts: Array, lengths: Array) -> Array: ...

    def odd_words(self, starts: Array, lengths: Array) -> tuple[Array, Array]:
        """Words that are spelled otherwise than their tokens: which of the tokens of some spans, and their spellings."""


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

    @property
    def opening(self) -> str:
        """The role before a text, on the decoder's side if there is one; else the role between running texts.

        >>> Template(single=("A",), pair=("B",), document=("A", "end")).opening
        'end'
        """
        frame = self.target or self.single
        before = frame[: frame.index("A")] or [role for role in self.for_documents.single if role != "A"]
        return before[-1] if before else ""

    def overhead(self, pair: bool) -> int:
        """Tokens that are not the texts' own."""
        return len(self.single) - 1 + (len(self.pair) - 1 if pair else 0) + len(self.last)

    def items(self, texts: int) -> list[tuple[str, int, int]]:
        """Roles and texts in order; the number of the text that each stands with, and its segment."""
        further = [(item, part, 1) for part in range(1, texts) for item in self.pair]
        items = [*((item, 0, 0) for item in self.single), *further, *((item, 0, 2) for item in self.last)]
        return [(item, part, segment if self.segments else 0) for item, part, segment in items]

    def sizes(self, spans: Array) -> Array:
        """(m, items) tokens of each item, for texts of so many tokens, (m, texts).

        >>> Template(single=("start", "A", "separator"), pair=("B", "separator")).sizes(np.array([[3, 2]])).tolist()
        [[1, 3, 1, 2, 1]]
        """
        items = self.items(spans.shape[1])
        sizes = np.ones((len(spans), len(items)), dtype=np.int64)
        for number, (item, part, _) in enumerate(items):
            if item in "AB":
                sizes[:, number] = spans[:, part]
            elif part:
                sizes[:, number] = spans[:, part] > 0
        return sizes


class Columns(dict[str, Array]):
    """Columns by name; `late` ones are made when somebody asks for them first."""

    def __init__(self, ready: Mapping[str, Array], **late: Callable[[], Array]) -> None:
        super().__init__(ready)
        self.late = late

    def __missing__(self, name: str) -> Array:
        self[name] = self.late[name]()
        return self[name]


@dataclass
class Sequences:
    """Some sequences end to end, and what has been decided about them so far."""

    ids: Array  # (n,) int64
    lengths: Array  # (b,)
    index: Array  # (b,) which sequences of the epoch these are: a coordinate of every draw
    columns: dict[str, Array] = field(default_factory=dict)  # (n,) special, word, segment …
    labels: dict[str, Array] = field(default_factory=dict)  # (b,) what an arrangement knows of a sequence
    targets: dict[str, tuple[Array, ...]] = field(default_factory=dict)  # term → at, target, and weight if it is not 1
    pattern: Pattern | None = None
    positions: Array | None = None
    second: Sequences | None = None  # the target side of an encoder-decoder
    frame: tuple[str, ...] = ()  # the template's `target`, for an objective that makes that side

    @cached_property
    def offsets(self) -> Array:
        """(b + 1,) where each sequence starts."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def owner(self) -> Array:
        """(n,) the place in `index` of the sequence each token belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def place(self) -> Array:
        """(n,) position inside the sequence."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)


@dataclass
class Arrangement:
    """An epoch's sequences as spans of a source: A, and B where there is one; further texts stand as B does."""

    source: Source
    tokenizer: Tokenizer
    template: Template
    starts: Array  # (m, k)
    spans: Array  # (m, k) lengths; 0 where there is no such text, which only later ones may lack
    labels: dict[str, Array] = field(default_factory=dict)  # (m,)
    truncated: int = 0  # how many texts were cut to fit
    columns: dict[str, Array] = field(default_factory=dict)  # (m, k) what a column says of each text and its template
    tokens: dict[str, Array] = field(default_factory=dict)  # (tokens of the source,) what it says of each; else -1

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Array:
        """(m,) tokens of each sequence, those of the template included."""
        total = self.spans.sum(1) + self.template.overhead(pair=False)
        if self.spans.shape[1] > 1:
            total = total + (self.spans[:, 1:] > 0).sum(1) * (len(self.template.pair) - 1)
        return np.asarray(total)

    def choose(self, chosen: Array) -> Arrangement:
        """Some of the sequences, in that order, some of them perhaps again."""
        labels, columns = ({name: x[chosen] for name, x in known.items()} for known in (self.labels, self.columns))
        return replace(self, starts=self.starts[chosen], spans=self.spans[chosen], labels=labels, columns=columns)

    def take(self, chosen: Array) -> Sequences:
        """Put some sequences together."""
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
        places = []  # where each text goes, and its spans in the source
        for number, (item, part, _) in enumerate(items):
            if item in "AB":
                at = spans_to_indices(begins[:, number], sizes[:, number])
                places.append((at, starts[:, part], spans[:, part]))
                ids[at] = self.source.gather(starts[:, part], spans[:, part])
            else:
                at = begins[:, number][sizes[:, number] > 0]
                ids[at] = self.tokenizer.role(item)
                special[at] = True

        def word() -> Array:
            found = np.ones(total, dtype=bool)
            for at, first, size in places:
                found[at] = self.source.gather_words(first, size)
            return found

        columns = Columns({"special": special, "segment": np.zeros(total, dtype=np.int64)}, word=word)
        if self.tokenizer.characters:
            columns["characters"] = self.tokenizer.spelling[ids]
            for at, first, size in places:
                odd, spelled = self.source.odd_words(first, size)
                if len(odd):
                    columns["characters"][at[odd]] = spelled
        values = {name: value[chosen][:, part_of] for name, value in self.columns.items()}  # (count, items)
        if segments.any():
            known = np.where(segments > 1, segments, values.get("segment", segments))
            values["segment"] = np.broadcast_to(known, sizes.shape)
        for name, value in values.items():
            columns[name] = np.repeat(value.ravel(), sizes.ravel())
        for name, value in self.tokens.items():
            columns[name] = np.full(total, -1, dtype=np.int64)
            for at, first, size in places:
                columns[name][at] = value[spans_to_indices(first, size)]
        sequences = Sequences(
            ids=ids,
            lengths=sizes.sum(1),
            index=np.asarray(chosen),
            columns=columns,
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
    rows: int | None = None  # sequences in a pack that are not filler, at most

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
    """Shuffle an arrangement into packs; those of one `group`, where it knows of groups, stay together."""
    groups = arrangement.labels.get("group")
    return PlannedEpoch(arrangement, plan_lengths(arrangement.lengths, packing, draws, shuffle, groups))


def plan_lengths(
    lengths: Array, packing: Packing, draws: Draws, shuffle: bool = True, groups: Array | None = None
) -> Plan:
    """Shuffle sequences of some lengths into packs."""
    return make_plan(
        lengths,
        tokens=packing.tokens,
        sequences=packing.sequences,
        seed=draws.seed,
        epoch=draws.epoch if draws.reading is None else draws.reading,
        shuffle=shuffle,
        filler=packing.length if packing.fixed else None,
        rows=packing.rows,
        groups=groups,
    )


MODEL_COLUMNS = (
    "segment",
    "language",
    "task",
    "order",
    "stream",
    "prefix",
    "fresh",
    "span",
    "global",
    "characters",
    "prompt",
)  # those a model looks at; the others are ours


def with_global_starts(sequences: Sequences) -> Sequences:
    """The first token of each sequence sees all of it and is seen by all, in models that tell such tokens from others."""
    sequences.columns["global"] = sequences.place == 0
    return sequences


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
        for term, (at, target, *weights) in side.targets.items():
            room = None if capacity is None else capacity.targets.get(term, capacity.tokens)
            weight = weights[0] if weights else None
            targets[term] = make_targets(at, target, weight, room)
            counts[term] = float(len(at) if weight is None else weight.sum())
    lengths = tuple(side.lengths for side in sides)
    return Batch(packed, targets, counts, rows=sequences.index, lengths=lengths)
