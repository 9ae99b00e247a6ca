"""A key-value cache with fixed shapes, whose forward passes can be recorded as CUDA graphs.

The number of tokens of each sequence is on the device, not on the host. Every forward pass reads the same number of new
tokens of each sequence, and attends to the first `visible` slots, of which a mask hides the unused ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.kv_cache import KVCache, LayerCache
from pretune.nn.attention.query_key_layout import (
    AttentionLayout,
    PaddedGroup,
    PaddedGroups,
    StaticKeys,
    TokenLayout,
    token_layout,
)
from pretune.packed import Packed
from pretune.runtime.arrays import Array


class StaticKVCache(KVCache):
    """A key-value cache with fixed shapes for decoders whose queries never attend to later tokens.

    With `shared`, sequences can share slots: a table has the slot of each token of each sequence. Beam search then
    reorders the rows of the table, and no keys and values are moved.
    """

    def __init__(self, sequences: int, slots: int, device: torch.device, shared: bool = False) -> None:
        """Create an empty cache of `slots` tokens for each of several sequences; see the class for `shared`."""
        super().__init__(sequences, slots)
        self.lengths = torch.zeros(sequences, dtype=torch.long, device=device)  # tokens of each sequence
        self.first = torch.arange(sequences, device=device) * slots  # first slot of each sequence
        self.visible = slots  # number of slots that a forward pass attends to
        self.table = self._own_slots() if shared else None  # (sequences, slots)

    def _own_slots(self) -> Tensor:
        """Return the indices of the slots of each sequence, (sequences, slots)."""
        return self.first[:, None] + torch.arange(self.target_slots.slots, device=self.first.device)

    def state(self) -> list[Tensor]:
        """Return the tensors that a forward pass changes, other than keys and values."""
        return [self.lengths] if self.table is None else [self.lengths, self.table]

    def load(self, cache: KVCache, chosen: Array) -> None:
        """Replace the content of this cache: its sequence i becomes the sequence `chosen[i]` of another cache."""
        device, longest = self.lengths.device, int(cache.used.max(initial=0))
        index = torch.from_numpy(chosen).to(device)
        for number, part in enumerate(cache.layers):
            if number == len(self.layers):
                shape = len(chosen), self.target_slots.slots, *part.keys.shape[2:]
                # Zeros, because a weight of 0 times uninitialized memory may be NaN.
                self.layers.append(
                    LayerCache(self.target_slots, part.keys.new_zeros(shape), part.values.new_zeros(shape))
                )
            own = self.layers[number]
            own.keys[:, :longest] = part.keys[index, :longest]
            own.values[:, :longest] = part.values[index, :longest]
        self.lengths.copy_(torch.from_numpy(cache.used[chosen]))
        if self.table is not None:
            self.table.copy_(self._own_slots())

    def truncate(self, used: Array) -> None:
        """Forget all but the first `used[i]` tokens of each sequence i."""
        self.lengths.copy_(torch.from_numpy(used), non_blocking=True)

    def reorder(self, origins: Tensor) -> None:
        """Let the new sequence i continue the old sequence `origins[i]`, (sequences,); the cache must be `shared`."""
        assert self.table is not None
        self.table.copy_(self.table[origins])
        self.lengths.copy_(self.lengths[origins])

    def next_positions(self, width: int) -> Tensor:
        """Return the positions of the next `width` tokens of each sequence, (sequences, width)."""
        return self.lengths[:, None] + torch.arange(width, device=self.lengths.device)

    def layout(self, packed: Packed) -> AttentionLayout:
        """Begin a forward pass on new tokens, the same number of each sequence, and return the layout of attention.

        The new tokens are the queries, and all visible slots are the keys. Tokens for which there is no slot go to the
        last slot: they are surplus tokens of sequences that have ended.
        """
        slots, device = self.target_slots.slots, self.lengths.device
        sequences, width = len(self.lengths), packed.max_length
        at = self.next_positions(width).clamp(max=slots - 1)  # (sequences, width)
        newest = self.first[:, None] + at
        self.target_slots.newest = newest.flatten()
        if self.table is not None:
            self.table.scatter_(1, at, newest)
        self.next_layer = 0
        places = torch.arange(self.visible, device=device)
        host = np.arange(sequences + 1) * self.visible
        keys = TokenLayout(packed.offsets, self.visible, {"position": places}, host)
        group = PaddedGroup(
            torch.arange(sequences * width, device=device).view(sequences, width),
            places.expand(sequences, -1),
            torch.ones(sequences, width, dtype=torch.bool, device=device),
            torch.ones(sequences, self.visible, dtype=torch.bool, device=device),
            unpadded=False,
            query_stride=width,
            key_stride=slots if self.table is None else self.visible,
        )
        groups = PaddedGroups([group], (sequences * width, sequences * slots))
        static = StaticKeys(self.lengths, slots, self.visible, self.table)
        return AttentionLayout(token_layout(packed), keys, {"groups": groups}, static=static)
