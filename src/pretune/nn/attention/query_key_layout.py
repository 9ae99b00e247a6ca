"""The layout of queries and keys in packed batches, for self-attention, cross-attention and attention to memory alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.packed import Packed
from pretune.runtime.arrays import Array

MOST_GROUPS = 4  # the dense path pads sequences of similar length together, in at most this many groups


@dataclass
class TokenLayout:
    """How the queries or keys of attention are packed: sequence offsets, and per-token features such as `position`."""

    offsets: Tensor  # (s + 1,) int32
    max_length: int
    columns: dict[str, Tensor]  # (n,) each, including `position`
    host_offsets: Array | None = None
    used: Array | None = None  # (s,) on the host: how many slots of each sequence hold tokens; None: all
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # shared by the layers of one forward pass

    def __len__(self) -> int:
        return self.columns["position"].shape[0]

    @property
    def sequence(self) -> Tensor:
        """Return, for each of the n tokens, the index of its sequence, (n,)."""
        if "sequence" not in self.cache:
            # Not len(), which a traced graph would keep as a constant for all batches.
            count = self.columns["position"].shape[0]
            places = torch.arange(count, device=self.offsets.device, dtype=torch.int32)
            # Search all offsets, not a slice of them: torch 2.11 compiles a search in a slice with a wrong start.
            self.cache["sequence"] = torch.searchsorted(self.offsets, places, right=True, out_int32=True) - 1
        return self.cache["sequence"]  # type: ignore[no-any-return]

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return, for each of the n tokens, where its sequence starts and where it ends (exclusive), (n,) each."""
        if "bounds" not in self.cache:
            sequence = self.sequence.long()
            self.cache["bounds"] = self.offsets[sequence], self.offsets[sequence + 1]
        return self.cache["bounds"]  # type: ignore[no-any-return]


def as_int32(side: TokenLayout) -> TokenLayout:
    """Return queries or keys, `side`, whose int64 columns, such as positions, are cast to int32 for faster kernels."""
    if "narrowed" not in side.cache:
        columns = {name: x.int() if x.dtype == torch.int64 else x for name, x in side.columns.items()}
        # Computed here because kernels look these up and cannot compute them.
        known = {"sequence": side.sequence, "bounds": side.bounds}
        side.cache["narrowed"] = replace(side, columns=columns, cache=known)
    return side.cache["narrowed"]  # type: ignore[no-any-return]


class TokenColumns:
    """The per-token features, such as `position`, of the tokens at given indices, looked up by name.

    Besides the stored features, `row` is the index of a token, `length` the length of its sequence, and `head` the
    index of the attention head.
    """

    def __init__(self, side: TokenLayout, at: Tensor, head: Tensor | None = None) -> None:
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
class StaticKeys:
    """The keys of a cache with fixed shapes, whose forward passes are recorded: nothing may be read on the host.

    Every query attends at least to its own token.
    """

    used: Tensor  # (s,) number of tokens of each sequence before the new ones
    slots: int  # number of slots of each sequence
    visible: int  # number of slots that are read, from the first one on
    table: Tensor | None  # (s, slots) the slot of each token, if sequences share slots

    def gather(self, x: Tensor) -> Tensor:
        """Return the keys or values of the visible tokens if sequences share slots, otherwise those in all slots."""
        return x if self.table is None else x.index_select(0, self.table[:, : self.visible].flatten())


@dataclass
class AttentionLayout:
    """The packed queries and keys of an attention call: query sequence i attends only to key sequence i."""

    queries: TokenLayout
    keys: TokenLayout
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # shared by the layers of one forward pass
    stride: int = 1  # distance between the positions of neighboring keys; more than 1 if tokens were pooled
    static: StaticKeys | None = None  # the keys are those of a cache with fixed shapes


@dataclass(kw_only=True)
class TracedPacked(Packed):
    """A packed batch in a graph traced for export: made from padded rows, and valid for batches of any shape."""

    mask: Tensor  # (b, L) True for the real tokens of the padded rows
    places: Tensor  # (n,) the place of each token in the flattened rows

    def __len__(self) -> int:
        # A graph for batches of any shape cannot depend on the number of tokens; it is never called without any.
        return 1


def token_layout(packed: Packed) -> TokenLayout:
    """Return the tokens of a packed batch as queries or keys of attention: sequence offsets and token features."""
    columns = {"position": packed.positions}
    columns |= {name: column for name, column in packed.columns.items() if column.dim() == 1}
    side = TokenLayout(packed.offsets, packed.max_length, columns, packed.host_offsets)
    if isinstance(packed, TracedPacked):
        side.cache["sequence"] = (packed.places // packed.mask.shape[1]).int()
    return side


def reverse_index(packed: Packed) -> Tensor:
    """Return token indices, (n,), that reverse the order of tokens within each sequence: x[indices] is x reversed."""
    start, end = token_layout(packed).bounds
    return start + end - 1 - torch.arange(packed.ids.shape[0], device=packed.ids.device)


class _Rearrange(torch.autograd.Function):
    """An autograd function that permutes rows; its backward pass is a gather, faster than torch's scatter-add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor | None) -> Tensor:
        ctx.save_for_backward(order if inverse is None else inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None


def permute_rows(x: Tensor, order: Tensor, inverse: Tensor | None = None) -> Tensor:
    """Permute the rows of x: row i of the result is row `order[i]` of x.

    `inverse` is the inverse permutation; without it, `order` must be its own inverse.

    >>> permute_rows(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])).flatten().tolist()
    [3.0, 1.0, 2.0]
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x[order]
    return _Rearrange.apply(x, order, inverse)  # type: ignore[no-any-return, no-untyped-call]


def self_layout(packed: Packed) -> AttentionLayout:
    """Return the attention layout (queries and keys) of self-attention within the sequences of a packed batch.

    >>> from pretune.packed import pack_lists
    >>> len(self_layout(pack_lists([[1, 2], [3]])).keys)
    3
    """
    side = token_layout(packed)
    layout = AttentionLayout(side, side)
    if isinstance(packed, TracedPacked):
        layout.cache["groups"] = groups_from_mask(packed.mask, packed.places)
    return layout


def layout_at(layout: AttentionLayout, at: Tensor) -> AttentionLayout:
    """Return a layout of self-attention in which only the m tokens with the indices `at` are queries.

    The tokens are in the order of their sequences. In a traced graph they must be one token of each sequence.

    >>> from pretune.packed import pack_lists
    >>> layout_at(self_layout(pack_lists([[1, 2], [3]])), torch.tensor([1])).queries.offsets.tolist()
    [0, 1, 1]
    """
    side = layout.queries
    sequences = side.offsets.shape[0] - 1
    columns = {name: column[at] for name, column in side.columns.items()}
    groups = layout.cache.get("groups")
    if groups is not None and groups.traced:
        return AttentionLayout(
            TokenLayout(torch.arange(sequences + 1), 1, columns), layout.keys, {"groups": one_query_each(groups)}
        )
    counts = np.bincount(side.sequence[at].cpu().numpy(), minlength=sequences)
    host = np.concatenate([[0], np.cumsum(counts)])
    offsets = torch.from_numpy(host).to(side.offsets)
    return AttentionLayout(
        TokenLayout(offsets, int(counts.max(initial=0)), columns, host), layout.keys, stride=layout.stride
    )


def cross_layout(target: Packed, source: Packed) -> AttentionLayout:
    """Return the attention layout of cross-attention from sequence i of `target` to sequence i of `source`."""
    return AttentionLayout(token_layout(target), token_layout(source))


def with_memory(side: TokenLayout, slots: int, used: Tensor, columns: dict[str, Tensor]) -> tuple[TokenLayout, Tensor]:
    """Insert memory tokens before each of the s sequences of the keys `side`.

    Return the new keys, and an index that tells where each of them comes from.

    Each sequence gets `slots` memory tokens, of which the last `used[i]` are filled; `columns` has the per-token
    features of all memory tokens, (s · slots,) each. The second result, (s · slots + n,), has one index for each new
    key, into the concatenation of all memory tokens and the n old keys.
    """
    sequences = side.offsets.shape[0] - 1
    device = side.offsets.device
    tokens = torch.arange(len(side), device=device)
    # Slot j of sequence i precedes the tokens of sequence i and follows everything of earlier sequences.
    first_slots = torch.arange(sequences, device=device) * slots + side.offsets[:-1].long()
    places = (first_slots[:, None] + torch.arange(slots, device=device)).flatten()
    index = torch.empty(sequences * slots + len(side), dtype=torch.long, device=device)
    index[places] = torch.arange(sequences * slots, device=device)
    index[tokens + (side.sequence.long() + 1) * slots] = tokens + sequences * slots
    steps = torch.arange(sequences + 1, device=device, dtype=torch.int32) * slots
    filled = torch.arange(slots, device=device) >= slots - used[:, None]  # (s, slots)
    joined = {name: torch.cat([columns[name], column])[index] for name, column in side.columns.items()}
    joined["remembered"] = torch.cat([filled.flatten(), torch.ones(len(side), dtype=torch.bool, device=device)])[index]
    host = None if side.host_offsets is None else side.host_offsets + slots * np.arange(sequences + 1)
    return TokenLayout(side.offsets + steps, side.max_length + slots, joined, host), index


@dataclass
class PaddedGroup:
    """Sequences padded to one length: token indices of b sequences' queries and keys, and masks of real tokens.

    Queries are (b, Lq) and keys (b, Lk), where Lq and Lk are the largest numbers of queries and keys in a sequence.
    """

    queries: Tensor
    keys: Tensor
    real_queries: Tensor
    real_keys: Tensor
    unpadded: bool  # there is no padding at all
    query_stride: int | None  # stride between sequences, where tokens lie in order and a view is enough; else None
    key_stride: int | None


@dataclass
class PaddedRows:
    """The mapping between packed tokens and their places in padded groups of sequences, for queries or for keys."""

    token: Tensor  # (rows,) the token of each row
    inverse: Tensor  # (n,) the row of each token: the inverse of `token`
    padding: Tensor  # (rows,) True for padding
    unmapped: Tensor | None  # (n,) True for tokens in no row, which are keys without a query; None: there are none


@dataclass
class PaddedGroups:
    """The sequences of an attention call in a few groups of similar length, each padded to its longest sequence."""

    groups: list[PaddedGroup]
    sizes: tuple[int, int | None]  # number of query tokens, and of key tokens if these are others
    traced: bool = False  # part of a graph that is traced and must hold for other groups as well

    @cached_property
    def queries(self) -> PaddedRows:
        """Return the mapping between the packed queries and their places in padded groups of sequences."""
        return _rows([(group.queries, group.real_queries) for group in self.groups], self.sizes[0])

    @cached_property
    def keys(self) -> PaddedRows:
        """Return the mapping between the packed keys and their places in padded groups of sequences."""
        if self.sizes[1] is None:
            return self.queries
        return _rows([(group.keys, group.real_keys) for group in self.groups], self.sizes[1])


def padded_groups(layout: AttentionLayout) -> PaddedGroups:
    """Return the sequences of an attention call in padded groups of similar length, cached for all layers."""
    if "groups" not in layout.cache:
        layout.cache["groups"] = _make_groups(layout)
    return layout.cache["groups"]  # type: ignore[no-any-return]


def groups_from_mask(real: Tensor, places: Tensor) -> PaddedGroups:
    """Return all sequences of a batch as one padded group, in a form that can be traced for any batch shape.

    `real` is the mask of real tokens in b padded rows, (b, L), and `places` has the index of each of the n tokens in
    the flattened rows, (n,).
    """
    token = (real.flatten().long().cumsum(0) - 1).clamp(min=0)  # the token at each place
    at = token.view(real.shape)
    groups = PaddedGroups([PaddedGroup(at, at, real, real, False, None, None)], (0, None), traced=True)
    groups.__dict__["queries"] = PaddedRows(token, places, ~real.flatten(), None)
    return groups


def one_query_each(groups: PaddedGroups) -> PaddedGroups:
    """Return the groups of a traced graph with one query for each of the b sequences, in their order."""
    (group,) = groups.groups
    rows = torch.arange(group.keys.shape[0], device=group.keys.device)
    real = torch.ones_like(rows, dtype=torch.bool)
    own = PaddedGroup(rows[:, None], group.keys, real[:, None], group.real_keys, False, 1, None)
    made = PaddedGroups([own], (0, 0), traced=True)
    made.__dict__["queries"] = PaddedRows(rows, rows, ~real, None)
    made.__dict__["keys"] = groups.keys
    return made


def _make_groups(layout: AttentionLayout) -> PaddedGroups:
    """Group the packed sequences of an attention call by similar length, and pad each group."""
    device = layout.queries.offsets.device
    starts_q, lengths_q = starts_and_lengths(layout.queries)
    starts_k, lengths_k = starts_and_lengths(layout.keys)
    present = np.flatnonzero(lengths_q > 0)
    same_length = len(present) > 0 and is_constant(lengths_q[present]) and is_constant(lengths_k[present])
    if layout.queries is not layout.keys:  # a view needs all keys, of sequences without queries too
        same_length = same_length and len(present) == len(starts_q) and layout.keys.used is None
    slots = layout.keys.used is not None and len(present) == len(starts_q)
    if same_length or slots:
        bounds, order = [0, len(present)], present
    else:
        order = present[np.argsort(-lengths_k[present], kind="stable")]
        bounds = length_groups(lengths_k[order])
    groups = []
    for first, last in pairwise(bounds):
        members = order[first:last]
        queries, real_queries = _padded(starts_q[members], lengths_q[members])
        keys, real_keys = _padded(starts_k[members], lengths_k[members])
        tensors = [torch.from_numpy(x).to(device) for x in (queries, keys, real_queries, real_keys)]
        unpadded = bool(real_queries.all() and real_keys.all() and keys.size)
        query_stride = queries.shape[1] if (same_length or slots) and real_queries.all() else None
        key_stride = len(layout.keys) // len(present) if same_length or slots else None
        groups.append(PaddedGroup(tensors[0], tensors[1], tensors[2], tensors[3], unpadded, query_stride, key_stride))
    return PaddedGroups(groups, (len(layout.queries), None if layout.queries is layout.keys else len(layout.keys)))


def is_constant(values: Array) -> bool:
    """Return whether all values of an array that is not empty are equal."""
    return bool((values == values[0]).all())


def _rows(indices_and_masks: list[tuple[Tensor, Tensor]], token_count: int) -> PaddedRows:
    """Return the mapping between tokens and padded rows, given the groups of padded sequences.

    `indices_and_masks` has, for each group, the token indices and the mask of real tokens, (b, L) each; `token_count`
    is the number of packed tokens.
    """
    at, real = (torch.cat([part.flatten() for part in parts]) for parts in zip(*indices_and_masks, strict=True))
    places = real.nonzero().squeeze(1)
    inverse = torch.full((token_count,), -1, device=at.device).index_copy(0, at[places], places)
    unmapped = inverse < 0
    return PaddedRows(at, inverse.clamp(min=0), ~real, unmapped if bool(unmapped.any()) else None)


def starts_and_lengths(side: TokenLayout) -> tuple[Array, Array]:
    """Return the start and the length of each sequence of the packed queries or keys `side`, as arrays on the host."""
    offsets = side.host_offsets if side.host_offsets is not None else side.offsets.cpu().numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets) if side.used is None else side.used


def length_groups(lengths: Array) -> list[int]:
    """Split decreasing `lengths` into up to four groups of similar length.

    Return the index at which each group starts, followed by the number of lengths.
    """
    bounds = [0]
    while len(bounds) < MOST_GROUPS:
        shorter = int(np.searchsorted(-lengths, -lengths[bounds[-1]] * 2 / 3, side="right")) if len(lengths) else 0
        if shorter >= len(lengths):
            break
        bounds.append(shorter)
    return [*bounds, len(lengths)]


def _padded(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Return the token indices of b sequences padded to the longest one, and the mask of real tokens, (b, L) each.

    `starts` and `lengths` tell where the sequences lie among the packed tokens.
    """
    steps = np.arange(int(lengths.max(initial=0)))
    real = steps < lengths[:, None]
    return np.where(real, starts[:, None] + steps, 0), real
