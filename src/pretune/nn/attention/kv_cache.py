"""A key-value cache for incremental decoding: a step computes the keys and values of the new tokens only.

A forward pass with a cache begins with `layout`; then each attention layer in turn appends its new keys and values
(`extend`) and gets the keys and values of all tokens so far. Cross-attention computes the keys and values of the
source only once (`source_keys_values`).
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
    """The preallocated slots of a key-value cache: `slots` tokens for each of several sequences, filled in order."""

    def __init__(self, sequences: int, slots: int) -> None:
        self.slots = slots
        self.used: Array = np.zeros(sequences, dtype=np.int64)  # on the host, where it determines shapes
        self.columns: dict[str, Tensor] = {}  # (sequences, slots) columns of the tokens
        self.newest = torch.empty(0, dtype=torch.long)  # (n,) slots of the newest tokens, of sequences · slots

    def fill(self, new: TokenLayout) -> None:
        """Assign slots to the packed tokens `new`, one run per sequence, and store their per-token features."""
        starts, lengths = starts_and_lengths(new)
        if len(lengths) != len(self.used) or (self.used + lengths).max(initial=0) > self.slots:
            raise PretuneError(
                f"a key-value cache for {len(self.used)} sequences of {self.slots} tokens has no room for {len(lengths)} "
                f"sequences with up to {lengths.max(initial=0)} more tokens; build the cache with more slots"
            )
        first = np.arange(len(lengths)) * self.slots + self.used - starts
        self.newest = torch.from_numpy(np.repeat(first, lengths) + np.arange(len(new))).to(new.offsets.device)
        self.used = self.used + lengths
        for name, column in new.columns.items():
            if name not in self.columns:
                self.columns[name] = column.new_zeros(len(lengths), self.slots)
            self.write(self.columns[name], column)

    def write(self, room: Tensor, values: Tensor) -> None:
        """Write values of the newest tokens, (n, …), to the slots of these tokens in `room`, (sequences, slots, …)."""
        room.flatten(0, 1).index_copy_(0, self.newest, values.detach())

    def as_keys(self) -> TokenLayout:
        """Return all slots as the keys of an attention call: sequence boundaries, used slots, per-token features."""
        host = np.arange(len(self.used) + 1) * self.slots
        offsets = torch.from_numpy(host.astype(np.int32)).to(self.newest.device)
        columns = {name: column.flatten() for name, column in self.columns.items()}
        return TokenLayout(offsets, int(self.used.max(initial=0)), columns, host, self.used)


@dataclass
class LayerCache:
    """The cached keys and values of one attention layer, (sequences, slots, heads, d) each."""

    slots: CacheSlots
    keys: Tensor
    values: Tensor


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
        self.target_slots = CacheSlots(sequences, slots)
        self.source: CacheSlots | None = None  # tokens of the encoder
        self.layers: list[LayerCache] = []  # in the order of the attention layers
        self.next_layer = 0  # index of the next attention layer

    @property
    def used(self) -> Array:
        """Return the number of cached tokens of each sequence, (sequences,)."""
        return self.target_slots.used

    def layout(self, packed: Packed) -> AttentionLayout:
        """Begin a forward pass on the new tokens `packed`: cache their features, and return the layout of attention.

        The new tokens are the queries, and all cached tokens, the new ones included, are the keys.
        """
        queries = token_layout(packed)
        self.target_slots.fill(queries)
        self.next_layer = 0
        return AttentionLayout(queries, self.target_slots.as_keys())

    def source_layout(self, packed: Packed, source: Packed) -> AttentionLayout:
        """Return the layout of cross-attention from the new tokens `packed` to the encoder tokens `source`.

        The first call assigns slots to the encoder tokens; later calls return the same keys.
        """
        if self.source is None:
            self.source = CacheSlots(source.offsets.shape[0] - 1, source.max_length)
            self.source.fill(token_layout(source))
        return AttentionLayout(token_layout(packed), self.source.as_keys())

    def extend(self, keys: Tensor, values: Tensor) -> KeysValues:
        """Append the keys and values of n new tokens, (n, heads, d), to the cache of the current layer.

        Return the keys and values in all of the layer's slots, (sequences · slots, heads, d) each, and go to the next
        layer.
        """
        return self._write(self.target_slots, (keys, values))

    def source_keys_values(self, make: Callable[[], KeysValues]) -> KeysValues:
        """Return the cached keys and values of the encoder for the current cross-attention layer.

        In the first forward pass, they are computed by `make()` and stored.
        """
        assert self.source is not None
        return self._write(self.source, make() if self.next_layer == len(self.layers) else None)

    def _write(self, slots: CacheSlots, new: KeysValues | None) -> KeysValues:
        """Write `new` keys and values to the current layer's cache, and go to the next layer.

        Return all keys and values in that cache. The first forward pass creates the cache of each layer.
        """
        if new is not None and self.next_layer == len(self.layers):
            # Zeros, because a weight of 0 times uninitialized memory may be NaN.
            keys, values = (x.new_zeros(len(slots.used), slots.slots, *x.shape[1:]) for x in new)
            self.layers.append(LayerCache(slots, keys, values))
        layer = self.layers[self.next_layer]
        if new is not None:
            slots.write(layer.keys, new[0])
            slots.write(layer.values, new[1])
        self.next_layer += 1
        return layer.keys.flatten(0, 1), layer.values.flatten(0, 1)

    def truncate(self, used: Array) -> None:
        """Forget all but the first `used[i]` tokens of each sequence i."""
        self.target_slots.used = np.minimum(self.used, used)

    def select(self, chosen: Array) -> None:
        """Replace sequence i of the cache with sequence `chosen[i]`, to reorder beams or to drop finished sequences."""
        rooms = [self.target_slots] if self.source is None else [self.target_slots, self.source]
        for part in self.layers:
            part.keys, part.values = (_select(x, chosen, part.slots) for x in (part.keys, part.values))
        for slots in rooms:
            slots.columns = {name: _select(column, chosen, slots) for name, column in slots.columns.items()}
            slots.used = slots.used[chosen]


def _select(cache: Tensor, chosen: Array, slots: CacheSlots) -> Tensor:
    """Return the sequences at the indices `chosen` of `cache`, (sequences, slots, …), copied in place if possible.

    `slots` tells how many slots of each sequence are used.
    """
    if len(chosen) != len(slots.used):
        return cache[torch.from_numpy(chosen).to(cache.device)]
    moved = np.flatnonzero(chosen != np.arange(len(chosen)))
    to, origin = (torch.from_numpy(rows).to(cache.device) for rows in (moved, chosen[moved]))
    longest = int(slots.used.max(initial=0))  # only used slots are copied, of sequences that move
    cache[to, :longest] = cache[origin, :longest]
    return cache
