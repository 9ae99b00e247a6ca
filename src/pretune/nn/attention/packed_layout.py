"""Layout: both sides of an attention call, so that self-attention, cross-attention and memory are the same call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.packed import Packed

Array = np.ndarray[Any, np.dtype[Any]]
MOST_GROUPS = 4  # the dense path pads sequences of similar length together, in at most so many groups


@dataclass
class Side:
    """The tokens of one side: where their sequences start and what is known of each token."""

    offsets: Tensor  # (s + 1,) int32
    longest: int
    columns: dict[str, Tensor]  # (n,) each, `position` among them
    host_offsets: Array | None = None
    used: Array | None = None  # (s,) on the host: how many tokens of each sequence are there, if not all of its slots
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # what the layers of one forward share

    def __len__(self) -> int:
        return self.columns["position"].shape[0]

    @property
    def sequence(self) -> Tensor:
        """(n,) the sequence each token belongs to."""
        if "sequence" not in self.cache:
            # Not len(): that is a number, which a traced graph would keep for all batches.
            count = self.columns["position"].shape[0]
            places = torch.arange(count, device=self.offsets.device, dtype=torch.int32)
            # All offsets, not those from the second on: compiled by torch 2.11, a search in a slice forgets where it starts.
            self.cache["sequence"] = torch.searchsorted(self.offsets, places, right=True, out_int32=True) - 1
        return self.cache["sequence"]  # type: ignore[no-any-return]

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """(n,) where the sequence of each token starts, and where it ends."""
        if "bounds" not in self.cache:
            sequence = self.sequence.long()
            self.cache["bounds"] = self.offsets[sequence], self.offsets[sequence + 1]
        return self.cache["bounds"]  # type: ignore[no-any-return]


def narrowed(side: Side) -> Side:
    """The same with numbers of 32 bits, which kernels compare for every pair of tokens in a fraction of the time."""
    if "narrowed" not in side.cache:
        columns = {name: x.int() if x.dtype == torch.int64 else x for name, x in side.columns.items()}
        # What kernels look up must be there before: they cannot make it.
        known = {"sequence": side.sequence, "bounds": side.bounds}
        side.cache["narrowed"] = replace(side, columns=columns, cache=known)
    return side.cache["narrowed"]  # type: ignore[no-any-return]


class Indexed:
    """Columns of tokens by their places, looked up when asked for.

    Besides those of the side there are `row`, the place itself, `length`, that of a token's sequence, and `head`, where it
    is given: which head looks.
    """

    def __init__(self, side: Side, at: Tensor, head: Tensor | None = None) -> None:
        self.side, self.at, self.head = side, at, head

    def __getitem__(self, name: str) -> Tensor:
        if name == "row":
            return self.at
        if name == "head":
            assert self.head is not None
            return self.head
        if name == "length":
            start, end = self.side.bounds
            return end[self.at] - start[self.at]
        return self.side.columns[name][self.at]


@dataclass
class Layout:
    """Queries and keys. Sequence i of the queries looks at sequence i of the keys, and at no other."""

    queries: Side
    keys: Side
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # what the layers of one forward share


def side_of(packed: Packed) -> Side:
    """The tokens of a Packed as one side."""
    columns = {"position": packed.positions}
    columns |= {name: column for name, column in packed.columns.items() if column.dim() == 1}
    side = Side(packed.offsets, packed.longest, columns, packed.host_offsets)
    if packed.rows is not None:
        side.cache["sequence"] = packed.rows.nonzero()[:, 0].int()
    return side


def reverse(packed: Packed) -> Tensor:
    """(n,) for each token the one at its place when its sequence is read from the end; its own inverse."""
    start, end = side_of(packed).bounds
    return start + end - 1 - torch.arange(packed.ids.shape[0], device=packed.ids.device)


class _Rearrange(torch.autograd.Function):
    """Autograd of an index adds up what several places may have taken, which is slow; here each is taken once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor | None) -> Tensor:
        ctx.save_for_backward(order if inverse is None else inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None


def rearrange(x: Tensor, order: Tensor, inverse: Tensor | None = None) -> Tensor:
    """Rows of x in another order, in which each is there once; `inverse` is the way back (None: the same).

    >>> rearrange(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])).flatten().tolist()
    [3.0, 1.0, 2.0]
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x[order]
    return _Rearrange.apply(x, order, inverse)  # type: ignore[no-any-return, no-untyped-call]


def self_layout(packed: Packed) -> Layout:
    """A Packed looking at itself.

    >>> from pretune.packed import pack_lists
    >>> len(self_layout(pack_lists([[1, 2], [3]])).keys)
    3
    """
    side = side_of(packed)
    layout = Layout(side, side)
    if packed.rows is not None:
        layout.cache["groups"] = padded_as(packed.rows)
    return layout


def cross_layout(target: Packed, source: Packed) -> Layout:
    """The sequences of one Packed looking at those of another."""
    return Layout(side_of(target), side_of(source))


def memory_side(side: Side, slots: int, used: Tensor, columns: dict[str, Tensor]) -> tuple[Side, Tensor]:
    """Keys that are `slots` remembered tokens followed by the sequence itself, for each sequence.

    `used` (s,) says how many of the slots, the last ones, are filled; `columns` are those of the slots, (s * slots,) each.
    Returns the side and an index (s * slots + n,) into slots followed by tokens, which puts them in its order.
    """
    sequences = side.offsets.shape[0] - 1
    device = side.offsets.device
    tokens = torch.arange(len(side), device=device)
    # Slot j of sequence i comes before the tokens of sequence i and after all that is before it.
    first_slots = torch.arange(sequences, device=device) * slots + side.offsets[:-1].long()
    places = (first_slots[:, None] + torch.arange(slots, device=device)).flatten()
    index = torch.empty(sequences * slots + len(side), dtype=torch.long, device=device)
    index[places] = torch.arange(sequences * slots, device=device)
    index[tokens + (side.sequence.long() + 1) * slots] = tokens + sequences * slots
    steps = torch.arange(sequences + 1, device=device, dtype=torch.int32) * slots
    filled = torch.arange(slots, device=device) >= slots - used[:, None]  # (s, slots)
    joined = {name: torch.cat([columns[name], column])[index] for name, column in side.columns.items()}
    joined["remembered"] = torch.cat([filled.flatten(), torch.ones(len(side), dtype=torch.bool, device=device)])[index]
    host = None
    if side.host_offsets is not None:
        host = side.host_offsets + slots * np.arange(sequences + 1)
    return Side(side.offsets + steps, side.longest + slots, joined, host), index


@dataclass
class Group:
    """Sequences padded together: (b, Lq) and (b, Lk) indices into the tokens of the two sides, and which are real."""

    queries: Tensor
    keys: Tensor
    real_queries: Tensor
    real_keys: Tensor
    even: bool  # no padding at all
    every_query: int | None  # rows from one sequence to the next, where all lie in order: a view will do
    every_key: int | None


@dataclass
class Rows:
    """The padded rows of one side, those of all groups: which token each is, and which row each token is."""

    at: Tensor  # (rows,)
    back: Tensor  # (n,)
    spare: Tensor  # (rows,) rows that only pad
    lost: Tensor | None  # (n,) tokens in no row: keys that nobody asks


@dataclass
class Groups:
    """The sequences of a layout in a few groups of similar length."""

    groups: list[Group]
    sizes: tuple[int, int | None]  # tokens of the queries, and of the keys where these are others
    traced: bool = False  # for a graph, which is to hold for other groups too

    @cached_property
    def queries(self) -> Rows:
        """Of all groups."""
        return _rows([(group.queries, group.real_queries) for group in self.groups], self.sizes[0])

    @cached_property
    def keys(self) -> Rows:
        """Of all groups."""
        if self.sizes[1] is None:
            return self.queries
        return _rows([(group.keys, group.real_keys) for group in self.groups], self.sizes[1])


def padded_groups(layout: Layout) -> Groups:
    """Made once for all layers."""
    if "groups" not in layout.cache:
        layout.cache["groups"] = _make_groups(layout)
    return layout.cache["groups"]  # type: ignore[no-any-return]


def padded_as(real: Tensor) -> Groups:
    """Tokens that were cut out of padded rows go back into them: (b, L) where there was one.

    By tensors alone, so that a graph that is traced holds for rows of any number and length.
    """
    places = (real.flatten().long().cumsum(0) - 1).clamp(min=0)  # which token each place has
    at = places.view(real.shape)
    groups = Groups([Group(at, at, real, real, False, None, None)], (0, None), traced=True)
    groups.__dict__["queries"] = Rows(places, real.flatten().nonzero().squeeze(1), ~real.flatten(), None)
    return groups


def _make_groups(layout: Layout) -> Groups:
    device = layout.queries.offsets.device
    starts_q, lengths_q = starts_and_lengths(layout.queries)
    starts_k, lengths_k = starts_and_lengths(layout.keys)
    present = np.flatnonzero(lengths_q > 0)
    alike = len(present) > 0 and layout.queries is layout.keys and len(np.unique(lengths_q[present])) == 1
    slots = layout.keys.used is not None and len(present) == len(starts_q)
    if alike or slots:
        bounds, order = [0, len(present)], present
    else:
        order = present[np.argsort(-lengths_k[present], kind="stable")]
        bounds = cut_lengths(lengths_k[order])
    groups = []
    for first, last in pairwise(bounds):
        members = order[first:last]
        queries, real_queries = _padded(starts_q[members], lengths_q[members])
        keys, real_keys = _padded(starts_k[members], lengths_k[members])
        tensors = [torch.from_numpy(x).to(device) for x in (queries, keys, real_queries, real_keys)]
        even = bool(real_queries.all() and real_keys.all() and keys.size)
        every_query = queries.shape[1] if (alike or slots) and real_queries.all() else None
        every_key = len(layout.keys) // len(present) if alike or slots else None
        groups.append(Group(tensors[0], tensors[1], tensors[2], tensors[3], even, every_query, every_key))
    return Groups(groups, (len(layout.queries), None if layout.queries is layout.keys else len(layout.keys)))


def _rows(groups: list[tuple[Tensor, Tensor]], tokens: int) -> Rows:
    """From the (b, L) indices of each group, and which of them are real."""
    at, real = (torch.cat([part.flatten() for part in parts]) for parts in zip(*groups, strict=True))
    places = real.nonzero().squeeze(1)
    back = torch.full((tokens,), -1, device=at.device).index_copy(0, at[places], places)
    lost = back < 0
    return Rows(at, back.clamp(min=0), ~real, lost if bool(lost.any()) else None)


def starts_and_lengths(side: Side) -> tuple[Array, Array]:
    """Where each sequence starts, and how many tokens it has; on the host."""
    offsets = side.host_offsets if side.host_offsets is not None else side.offsets.cpu().numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets) if side.used is None else side.used


def cut_lengths(lengths: Array) -> list[int]:
    """Bounds of groups of falling lengths: a new one where sequences are less than two thirds of the group's longest."""
    bounds = [0]
    while len(bounds) < MOST_GROUPS:
        shorter = int(np.searchsorted(-lengths, -lengths[bounds[-1]] * 2 / 3, side="right")) if len(lengths) else 0
        if shorter >= len(lengths):
            break
        bounds.append(shorter)
    return [*bounds, len(lengths)]


def _padded(starts: Array, lengths: Array) -> tuple[Array, Array]:
    steps = np.arange(int(lengths.max(initial=0)))
    real = steps < lengths[:, None]
    return np.where(real, starts[:, None] + steps, 0), real
