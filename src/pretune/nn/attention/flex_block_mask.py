"""flex_attention's block mask: which blocks of keys each block of queries has to look at.

The pattern is not evaluated for pairs of tokens, but for pairs of blocks (see `ranges`): listed are the blocks that may hold a
pair who see each other, so that windows, tokens that see all and planned blocks cost as much as they list. Blocks whose
tokens all see each other are listed apart: there the pattern need not be asked again. Shapes depend on the capacities alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pretune.nn.attention.interval_arithmetic import Range
from pretune.nn.attention.packed_layout import Indexed, Layout, Side, narrowed
from pretune.nn.attention.patterns import Pattern

BLOCK = 128  # tokens


def block_mask(layout: Layout, pattern: Pattern) -> Any:
    """The mask of a pattern, made once for all layers that have the same."""
    from torch.nn.attention.flex_attention import BlockMask

    name = ("block mask", pattern.name)
    if name in layout.cache:
        return layout.cache[name]
    queries, keys = narrowed(layout.queries), narrowed(layout.keys)
    sequence_q, sequence_k = queries.sequence, keys.sequence

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = sequence_q[i] == sequence_k[j]
        return same & pattern.allow(Indexed(queries, i, h), Indexed(keys, j))  # type: ignore[no-any-return]

    some, whole = seen_blocks(layout, pattern)
    layout.cache[name] = BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(len(queries), len(keys)),
    )
    return layout.cache[name]


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(heads, query blocks, key blocks) → how many each row has, and which: these first. With a dimension for the batch.

    Places are counted, not sorted: inside a compiled model a sort of some fifty blocks took the compiler minutes.
    """
    count = blocks.sum(-1, keepdim=True)
    place = torch.where(blocks, blocks.cumsum(-1), count + (~blocks).cumsum(-1)) - 1
    every = torch.arange(blocks.shape[-1], device=blocks.device, dtype=torch.int32).expand(blocks.shape)
    order = torch.empty_like(every, memory_format=torch.contiguous_format).scatter(-1, place, every)
    return count.squeeze(-1).int()[None], order[None]


def seen_blocks(layout: Layout, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """(heads, query blocks, key blocks) where some tokens may see each other, and where all do; heads is 1 where it is
    the same for all."""
    queries, keys = _Blocks(layout.queries), _Blocks(layout.keys)
    # The sequences that two blocks have in common, as a rule one: further ones lie wholly inside one of the blocks.
    first = torch.maximum(queries.first[:, None], keys.first)
    last = torch.minimum(queries.last[:, None], keys.last)
    heads = torch.arange(pattern.heads, device=first.device)[:, None, None]
    query: Any = _Ranges(queries, first != queries.first[:, None], dim=1, heads=heads)
    key: Any = _Ranges(keys, first != keys.first, dim=0)
    truth = pattern.allow(query, key)
    some = (first < last) | ((first == last) & truth.some)
    alone = queries.alone[:, None] & keys.alone & (first == last)
    shape = (pattern.heads, *first.shape)
    return some.expand(shape), (alone & truth.all).expand(shape)


class _Blocks:
    """The tokens of a side in blocks. Those of a block's first sequence and the others are told apart."""

    def __init__(self, side: Side) -> None:
        n = len(side)
        places = torch.arange(-(-n // BLOCK) * BLOCK, device=side.offsets.device).view(-1, BLOCK)
        rows = places.clamp(max=n - 1)  # the last token stands in for those that lack
        self.columns = Indexed(side, rows)
        sequence = side.sequence[rows]
        self.first, self.last = sequence[:, 0], sequence[:, -1]  # (blocks,)
        self.head = sequence == sequence[:, :1]  # (blocks, BLOCK)
        # All tokens are there and of one sequence.
        self.alone = (self.first == self.last) & (places[:, -1] < n)


class _Ranges:
    """Columns of blocks as ranges, of the first sequence in each or, where `others`, of those after it."""

    def __init__(self, blocks: _Blocks, others: Tensor, dim: int, heads: Tensor | None = None) -> None:
        """`others` is (query blocks, key blocks); `dim` is that of the other side; `heads` (heads, 1, 1) are the queries'."""
        self.blocks, self.others, self.dim, self.heads = blocks, others, dim, heads

    def __getitem__(self, name: str) -> Range:
        if name == "head":
            assert self.heads is not None
            return Range(self.heads, self.heads)
        head = self.blocks.head
        column = self.blocks.columns[name]  # (blocks, BLOCK)
        column = column.int() if column.dtype == torch.bool else column
        # A token of the one part stands in for those of the other.
        parts = torch.where(head, column, column[:, :1]), torch.where(head, column[:, -1:], column)
        lows, highs = [part.amin(-1) for part in parts], [part.amax(-1) for part in parts]
        return Range(self._choose(*lows), self._choose(*highs))

    def _choose(self, first: Tensor, others: Tensor) -> Tensor:
        return torch.where(self.others, others.unsqueeze(self.dim), first.unsqueeze(self.dim))
