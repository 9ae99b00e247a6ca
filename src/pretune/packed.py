"""Packed token sequences and batches: the only form in which tokens reach a model.

s sequences of n tokens in all are concatenated, without padding between them:

    ids        (n,)     3 7 2 | 5 5 | 9 1 4 8 | filler
    offsets    (s+1,)   0      3     5         9        n n n
    positions  (n,)     0 1 2   0 1   0 1 2 3   0 1 …

With a `Capacity`, all shapes are fixed, so that a model is compiled only once. Unused tokens at the end are filler,
which is split into sequences of at most the maximum length and excluded from all counts; unused offsets repeat n;
unused targets have weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

if TYPE_CHECKING:
    from pretune.nn.attention.patterns import Pattern


@dataclass(frozen=True)
class Capacity:
    """The fixed sizes to which a packed batch and the targets of each loss term are padded."""

    tokens: int
    sequences: int  # including filler, which is split into sequences of at most `max_length` tokens
    max_length: int
    targets: Mapping[str, int] = field(default_factory=dict)
    second: Capacity | None = None  # of the target side of an encoder-decoder; None: the same

    def __post_init__(self) -> None:
        if self.sequences < self.filler(0):
            raise PretuneError(
                f"{self.tokens} tokens do not fit into {self.sequences} sequences of at most {self.max_length} tokens; "
                "increase the number of sequences or the maximum length"
            )

    def filler(self, used: int) -> int:
        """Return the number of padding sequences that are needed to fill a batch that has `used` real tokens."""
        return -(-(self.tokens - used) // self.max_length)


@dataclass
class Packed:
    """Token sequences that are concatenated without padding between them, as tensors."""

    ids: Tensor  # (n,) int64
    offsets: Tensor  # (s + 1,) int32, as the variable-length kernels require
    positions: Tensor  # (n,) int64: within the sequence, unless an objective sets them otherwise
    max_length: int  # upper bound on the length of a sequence
    columns: dict[str, Tensor] = field(default_factory=dict)  # (n,) or (n, c): segment, order, stream, prefix …
    pattern: Pattern | None = None  # attention pattern, in addition to that of the layers; None: no restriction
    host_offsets: Array | None = None  # offsets on the host; None on a GPU, where reading them would synchronize

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> Packed:
        """Return a copy of the packed sequences on a device, transferred asynchronously."""
        moved = self.map(lambda tensor: copy_async(tensor, device))
        moved.host_offsets = self.host_offsets if device.type == "cpu" else None
        return moved

    def map(self, change: Callable[[Tensor], Tensor]) -> Packed:
        """Return a copy of the packed sequences with the function `change` applied to every tensor."""
        return replace(
            self,
            ids=change(self.ids),
            offsets=change(self.offsets),
            positions=change(self.positions),
            columns={name: change(column) for name, column in self.columns.items()},
        )


@dataclass
class Targets:
    """The targets of a loss term: the token or sequence with index `at[i]` predicts `target[i]`, weighted by `weight[i]`."""

    at: Tensor  # (m,) int64, or (m, k) for predictions from several positions together
    target: Tensor  # (m,) int64, or float for regression; (m, k) for several classes or candidates
    weight: Tensor  # (m,) float32; 0 where the slot is unused

    def to(self, device: torch.device) -> Targets:
        """Return a copy of the targets on a device, transferred asynchronously."""
        return self.map(lambda tensor: copy_async(tensor, device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Targets:
        """Return a copy of the targets with the function `change` applied to every tensor."""
        return Targets(change(self.at), change(self.target), change(self.weight))


@dataclass
class Batch:
    """The input of one forward pass: packed tokens (of source and target for seq2seq), and targets per loss term."""

    packed: tuple[Packed, ...]
    targets: dict[str, Targets] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)  # sum of target weights of each term, on the host
    rows: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # (sequences,) indices of the data rows
    state: Any = None  # recurrent state or memory from the previous batch, for stateful backbones
    lengths: tuple[Array, ...] = ()  # (sequences,) for each side, on the host, without filler; (): one sequence per row

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the batch, without padding."""
        return int(self.counts.get("tokens", 0))

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch on a device, transferred asynchronously."""
        return self._map(lambda part: part.to(device))

    def pinned(self) -> Batch:
        """Return a copy of the batch in pinned memory, which a GPU reads without blocking the host."""
        return self._map(lambda part: part.map(Tensor.pin_memory))

    def _map(self, change: Callable[[Any], Any]) -> Batch:
        """Return a copy of the batch with the function `change` applied to its packed tokens and its targets."""
        targets = {name: change(targets) for name, targets in self.targets.items()}
        return replace(self, packed=tuple(map(change, self.packed)), targets=targets)

    def with_zero_weights(self) -> Batch:
        """Return a copy of the batch whose targets have weight 0, for a distributed process that has no data left."""
        targets = {name: replace(t, weight=torch.zeros_like(t.weight)) for name, t in self.targets.items()}
        return replace(self, targets=targets, counts=dict.fromkeys(self.counts, 0.0))


def copy_async(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor on a device, transferred asynchronously by way of pinned memory."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def pack(
    ids: Array,
    lengths: Array,
    *,
    positions: Array | None = None,
    columns: Mapping[str, Array] | None = None,
    pattern: Pattern | None = None,
    capacity: Capacity | None = None,
    filler: int = 0,
) -> Packed:
    """Build packed sequences from concatenated token ids and the lengths of the sequences.

    With a `capacity`, unused places are filled with the id `filler`; `columns` has further features of the tokens.

    >>> pack(np.array([3, 7, 2, 5]), np.array([3, 1])).offsets.tolist()
    [0, 3, 4]
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    used = int(offsets[-1])
    if positions is None:
        positions = np.arange(used) - np.repeat(offsets[:-1], lengths)
    longest = int(lengths.max(initial=0))
    if capacity is not None:
        spare = capacity.sequences - len(lengths)
        if used > capacity.tokens or spare < capacity.filler(used) or longest > capacity.max_length:
            raise PretuneError(
                f"{len(lengths)} sequences with {used} tokens in all and at most {longest} each do not fit into "
                f"{capacity.sequences} sequences with {capacity.tokens} tokens in all and at most {capacity.max_length} each; "
                "use a larger capacity"
            )
        longest = capacity.max_length
        ends = np.minimum(used + longest * np.arange(1, spare + 1), capacity.tokens)
        offsets = np.concatenate([offsets, ends.astype(np.int32)])
        unused = capacity.tokens - used
        ids = np.concatenate([ids, np.full(unused, filler, dtype=ids.dtype)])
        # No position beyond those of real tokens: query copies (plm) have none, and the model may have no vector for it.
        positions = np.concatenate([positions, np.minimum(np.arange(unused) % longest, positions.max(initial=0))])
        columns = {name: _append_zeros(column, unused) for name, column in (columns or {}).items()}
    return Packed(
        ids=torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)),
        offsets=torch.from_numpy(offsets),
        positions=torch.from_numpy(np.ascontiguousarray(positions, dtype=np.int64)),
        max_length=longest,
        columns={name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in (columns or {}).items()},
        pattern=pattern,
        host_offsets=offsets.astype(np.int64),
    )


def _append_zeros(column: Array, count: int) -> Array:
    return np.concatenate([column, np.zeros((count, *column.shape[1:]), dtype=column.dtype)])


def pack_targets(at: Array, target: Array, weight: Array | None = None, capacity: int | None = None) -> Targets:
    """Build the targets of a loss term: the token or sequence with index `at[i]` predicts `target[i]`.

    With a `capacity`, targets with weight 0 are added up to that number.

    >>> pack_targets(np.array([4]), np.array([7]), capacity=3).weight.tolist()
    [1.0, 0.0, 0.0]
    """
    if weight is None:
        weight = np.ones(len(at), dtype=np.float32)
    spare = 0 if capacity is None else capacity - len(at)
    if spare < 0:
        raise PretuneError(
            f"{len(at)} targets do not fit into the {capacity} target slots of a batch; use a larger capacity"
        )
    if spare:
        at, target, weight = (_append_zeros(x, spare) for x in (at, target, weight))
    kind = np.float32 if np.issubdtype(target.dtype, np.floating) else np.int64
    return Targets(
        at=torch.from_numpy(np.ascontiguousarray(at, dtype=np.int64)),
        target=torch.from_numpy(np.ascontiguousarray(target, dtype=kind)),
        weight=torch.from_numpy(np.ascontiguousarray(weight, dtype=np.float32)),
    )


def pack_lists(sequences: Sequence[Sequence[int]], **options: Any) -> Packed:
    """Build packed sequences from lists of token ids, one per sequence; keyword arguments are those of `pack`.

    >>> len(pack_lists([[3, 7], [5]]))
    3
    """
    ids = np.array([i for sequence in sequences for i in sequence], dtype=np.int64)
    return pack(ids, np.array(list(map(len, sequences)), dtype=np.int64), **options)
