"""A key-value cache for incremental decoding: a step computes the keys and values of the new tokens only.

Every attention layer of a stack has preallocated slots, (sequences, slots, heads, d), which are filled from the front, as many
as each sequence needs. A forward pass with a cache begins with `layout`; then each attention layer in turn appends its new keys
and values (`extend`) and gets those of all tokens. Cross-attention computes those of the source only once (`once`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.query_key_layout import AttentionLayout, TokenLayout, starts_and_lengths, token_layout
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

KeysValues = tuple[Tensor, Tensor]


class CacheSlots:
    """Slots for the tokens of some sequences, filled from the front."""

    def __init__(self, sequences: int, slots: int) -> None:
        self.slots = slots
        self.used: Array = np.zeros(sequences, dtype=np.int64)  # on the host, where it determines shapes
        self.columns: dict[str, Tensor] = {}  # (sequences, slots) columns of the tokens
        self.rows = torch.empty(0, dtype=torch.long)  # (n,) slots of the newest tokens, of sequences · slots

    def fill(self, new: TokenLayout) -> None:
        """Add the next tokens of every sequence."""
        starts, lengths = starts_and_lengths(new)
        if len(lengths) != len(self.used) or (self.used + lengths).max(initial=0) > self.slots:
            raise PretuneError(
                f"a key-value cache for {len(self.used)} sequences of {self.slots} tokens has no room for {len(lengths)} "
                f"sequences with up to {lengths.max(initial=0)} more tokens; build it with more slots"
            )
        first = np.arange(len(lengths)) * self.slots + self.used - starts
        self.rows = torch.from_numpy(np.repeat(first, lengths) + np.arange(len(new))).to(new.offsets.device)
        self.used = self.used + lengths
        for name, column in new.columns.items():
            if name not in self.columns:
                self.columns[name] = column.new_zeros(len(lengths), self.slots)
            self.put(self.columns[name], column)

    def put(self, room: Tensor, values: Tensor) -> None:
        """Write values of the newest tokens, (n, …), into their slots, (sequences, slots, …)."""
        room.flatten(0, 1).index_copy_(0, self.rows, values.detach())

    def side(self) -> TokenLayout:
        """Return all tokens so far as one side of an attention call."""
        host = np.arange(len(self.used) + 1) * self.slots
        offsets = torch.from_numpy(host.astype(np.int32)).to(self.rows.device)
        columns = {name: column.flatten() for name, column in self.columns.items()}
        return TokenLayout(offsets, int(self.used.max(initial=0)), columns, host, self.used)


@dataclass
class LayerCache:
    """The keys and values of one attention layer, (sequences, slots, heads, d) each."""

    slots: CacheSlots
    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, slots: CacheSlots, like: KeysValues) -> LayerCache:
        """Allocate slots for keys and values with the shape of `like`."""
        # Zeros, because a weight of 0 times uninitialized memory may be NaN.
        keys, values = (x.new_zeros(len(slots.used), slots.slots, *x.shape[1:]) for x in like)
        return cls(slots, keys, values)

    def put(self, new: KeysValues) -> None:
        """Write the keys and values of the newest tokens, (n, heads, d) each."""
        self.slots.put(self.keys, new[0])
        self.slots.put(self.values, new[1])

    def rows(self) -> KeysValues:
        """Return all keys and values, (sequences · slots, heads, d) each."""
        return self.keys.flatten(0, 1), self.values.flatten(0, 1)


class KVCache:
    """A key-value cache for all attention layers of a decoder.

    >>> from pretune.packed import pack_lists
    >>> cache = KVCache(sequences=2, slots=8)
    >>> _ = cache.layout(pack_lists([[3, 7, 2], [5]]))
    >>> cache.used.tolist()
    [3, 1]
    """

    def __init__(self, sequences: int, slots: int) -> None:
        """Create an empty cache; `slots` is the largest number of tokens per sequence."""
        self.own = CacheSlots(sequences, slots)
        self.source: CacheSlots | None = None  # tokens of the encoder
        self.parts: list[LayerCache] = []  # in the order of the attention layers
        self.turn = 0  # index of the next attention layer

    @property
    def used(self) -> Array:
        """Return the number of tokens read so far, (sequences,)."""
        return self.own.used

    def layout(self, packed: Packed) -> AttentionLayout:
        """Begin a forward pass and return the layout in which new tokens attend to themselves and to all earlier ones."""
        queries = token_layout(packed)
        self.own.fill(queries)
        self.turn = 0
        return AttentionLayout(queries, self.own.side())

    def source_layout(self, packed: Packed, source: Packed) -> AttentionLayout:
        """Return the layout of cross-attention to `source`, which is read in the first forward pass only."""
        if self.source is None:
            self.source = CacheSlots(source.offsets.shape[0] - 1, source.max_length)
            self.source.fill(token_layout(source))
        return AttentionLayout(token_layout(packed), self.source.side())

    def extend(self, keys: Tensor, values: Tensor) -> KeysValues:
        """Append the keys and values of the new tokens, (n, heads, d), and return those of all tokens."""
        if self.turn == len(self.parts):
            self.parts.append(LayerCache.make(self.own, (keys, values)))
        part = self.parts[self.turn]
        self.turn += 1
        part.put((keys, values))
        return part.rows()

    def once(self, make: Callable[[], KeysValues]) -> KeysValues:
        """Return the keys and values of the source, which `make` computes in the first forward pass."""
        if self.turn == len(self.parts):
            assert self.source is not None
            new = make()
            self.parts.append(LayerCache.make(self.source, new))
            self.parts[-1].put(new)
        part = self.parts[self.turn]
        self.turn += 1
        return part.rows()

    def select(self, chosen: Array) -> None:
        """Continue sequence i from the state of sequence `chosen[i]`, as beam search and finished sequences require."""
        rooms = [self.own] if self.source is None else [self.own, self.source]
        for part in self.parts:
            part.keys, part.values = (_select(x, chosen, part.slots) for x in (part.keys, part.values))
        for slots in rooms:
            slots.columns = {name: _select(column, chosen, slots) for name, column in slots.columns.items()}
        for slots in rooms:
            slots.used = slots.used[chosen]


def _select(room: Tensor, chosen: Array, slots: CacheSlots) -> Tensor:
    """Select sequences; if their number stays the same, copy only those that move, and only their used slots."""
    if len(chosen) != len(slots.used):
        return room[torch.from_numpy(chosen).to(room.device)]
    moved = np.flatnonzero(chosen != np.arange(len(chosen)))
    to, origin = (torch.from_numpy(rows).to(room.device) for rows in (moved, chosen[moved]))
    longest = int(slots.used.max(initial=0))
    room[to, :longest] = room[origin, :longest]
    return room
