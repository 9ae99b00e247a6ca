"""The key-value cache: keys and values of tokens that were read before, so that a step reads the new tokens alone.

Every attention of a stack has slots for all tokens there may be, (sequences, slots, heads, d), made once and filled from
the front, as many as each sequence needs. A forward with a cache begins with its `layout`; then every attention in turn
puts its new keys and values in (`extend`) and gets all there are to look at. A decoder's attention to an encoder does
that for the source once and for all (`once`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.packed_layout import Layout, Side, side_of, starts_and_lengths
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]
KeysValues = tuple[Tensor, Tensor]


class Slots:
    """Room for the tokens of some sequences, filled from the front."""

    def __init__(self, sequences: int, slots: int) -> None:
        self.slots = slots
        self.used: Array = np.zeros(sequences, dtype=np.int64)  # on the host: it decides what is computed
        self.columns: dict[str, Tensor] = {}  # (sequences, slots) what is known of each token
        self.rows = torch.empty(0, dtype=torch.long)  # (n,) where the newest tokens are, of sequences · slots

    def fill(self, new: Side) -> None:
        """The next tokens of every sequence move in."""
        starts, lengths = starts_and_lengths(new)
        if len(lengths) != len(self.used) or (self.used + lengths).max(initial=0) > self.slots:
            raise PretuneError(
                f"a cache for {len(self.used)} sequences of {self.slots} tokens has no room for {len(lengths)} sequences "
                f"with up to {lengths.max(initial=0)} more"
            )
        first = np.arange(len(lengths)) * self.slots + self.used - starts
        self.rows = torch.from_numpy(np.repeat(first, lengths) + np.arange(len(new))).to(new.offsets.device)
        self.used = self.used + lengths
        for name, column in new.columns.items():
            if name not in self.columns:
                self.columns[name] = column.new_zeros(len(lengths), self.slots)
            self.put(self.columns[name], column)

    def put(self, room: Tensor, values: Tensor) -> None:
        """Write something of the newest tokens, (n, …), into room for it, (sequences, slots, …)."""
        room.flatten(0, 1).index_copy_(0, self.rows, values.detach())

    def side(self) -> Side:
        """All tokens so far."""
        host = np.arange(len(self.used) + 1) * self.slots
        offsets = torch.from_numpy(host.astype(np.int32)).to(self.rows.device)
        columns = {name: column.flatten() for name, column in self.columns.items()}
        return Side(offsets, int(self.used.max(initial=0)), columns, host, self.used)


@dataclass
class Part:
    """What one attention has stored, (sequences, slots, heads, d) each."""

    slots: Slots
    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, slots: Slots, like: KeysValues) -> Part:
        """Room for keys and values of such heads."""
        # Zeros, for a weight of 0 times whatever lies in fresh memory may be no number.
        keys, values = (x.new_zeros(len(slots.used), slots.slots, *x.shape[1:]) for x in like)
        return cls(slots, keys, values)

    def put(self, new: KeysValues) -> None:
        """Those of the newest tokens, (n, heads, d), move in."""
        self.slots.put(self.keys, new[0])
        self.slots.put(self.values, new[1])

    def rows(self) -> KeysValues:
        """All of them, (sequences · slots, heads, d) each."""
        return self.keys.flatten(0, 1), self.values.flatten(0, 1)


class Cache:
    """What a stack has read of some sequences: the carry of a decoder.

    >>> from pretune.packed import pack_lists
    >>> cache = Cache(sequences=2, slots=8)
    >>> _ = cache.layout(pack_lists([[3, 7, 2], [5]]))
    >>> cache.used.tolist()
    [3, 1]
    """

    def __init__(self, sequences: int, slots: int) -> None:
        """`slots`: how many tokens a sequence may come to have."""
        self.own = Slots(sequences, slots)
        self.source: Slots | None = None  # an encoder's tokens
        self.parts: list[Part] = []  # in the order of the attentions
        self.turn = 0  # of which of them

    @property
    def used(self) -> Array:
        """(sequences,) tokens read so far."""
        return self.own.used

    def layout(self, packed: Packed) -> Layout:
        """Begin a forward: these tokens look at themselves and at what was read before."""
        queries = side_of(packed)
        self.own.fill(queries)
        self.turn = 0
        return Layout(queries, self.own.side())

    def source_layout(self, packed: Packed, source: Packed) -> Layout:
        """These tokens look at a source, which moves in at the first forward; later ones do not look at `source`."""
        if self.source is None:
            self.source = Slots(source.offsets.shape[0] - 1, source.longest)
            self.source.fill(side_of(source))
        return Layout(side_of(packed), self.source.side())

    def extend(self, keys: Tensor, values: Tensor) -> KeysValues:
        """Keys and values of the new tokens, (n, heads, d), move in. Returns everybody's."""
        if self.turn == len(self.parts):
            self.parts.append(Part.make(self.own, (keys, values)))
        part = self.parts[self.turn]
        self.turn += 1
        part.put((keys, values))
        return part.rows()

    def once(self, make: Callable[[], KeysValues]) -> KeysValues:
        """Keys and values of the source, made at the first forward."""
        if self.turn == len(self.parts):
            assert self.source is not None
            new = make()
            self.parts.append(Part.make(self.source, new))
            self.parts[-1].put(new)
        part = self.parts[self.turn]
        self.turn += 1
        return part.rows()

    def select(self, chosen: Array) -> None:
        """Sequence i goes on from what sequence chosen[i] is: beams change places, ended sequences drop out."""
        rooms = [self.own] if self.source is None else [self.own, self.source]
        for part in self.parts:
            part.keys, part.values = (_select(x, chosen, part.slots) for x in (part.keys, part.values))
        for slots in rooms:
            slots.columns = {name: _select(column, chosen, slots) for name, column in slots.columns.items()}
        for slots in rooms:
            slots.used = slots.used[chosen]


def _select(room: Tensor, chosen: Array, slots: Slots) -> Tensor:
    """Where as many sequences stay, only those that move are copied, and only as far as they are used."""
    if len(chosen) != len(slots.used):
        return room[torch.from_numpy(chosen).to(room.device)]
    moved = np.flatnonzero(chosen != np.arange(len(chosen)))
    to, origin = (torch.from_numpy(rows).to(room.device) for rows in (moved, chosen[moved]))
    longest = int(slots.used.max(initial=0))
    room[to, :longest] = room[origin, :longest]
    return room
