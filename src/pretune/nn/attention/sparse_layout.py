"""What the kernels of sparse attention read: lists of global tokens, blocks of sequences, and their random blocks.

All shapes follow from the number of tokens and sequences, and nothing is read by the host, so that batches of any
content run in one compiled graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pretune.nn.attention.patterns import RandomBlocks
from pretune.nn.attention.query_key_layout import TokenLayout

LEVELS = 1 << 15  # of a random number: times a number of blocks, it still fits into 32 bits


@dataclass
class GlobalTokens:
    """The global tokens of packed sequences, which the column `global` marks."""

    flags: Tensor  # (n,) int8: 1 for global tokens
    before: Tensor  # (n + 1,) int32: how many global tokens precede a token
    listed: Tensor  # (n,) int32: the indices of the global tokens, in order, then zeros


def find_global_tokens(side: TokenLayout) -> GlobalTokens:
    """Return the global tokens of packed sequences, cached for all layers.

    >>> from pretune.nn.attention.query_key_layout import token_layout
    >>> from pretune.packed import pack_lists
    >>> side = token_layout(pack_lists([[1, 2], [3, 4]]))
    >>> side.columns["global"] = torch.tensor([0, 1, 1, 0])
    >>> found = find_global_tokens(side)
    >>> found.listed.tolist(), found.before.tolist()
    ([1, 2, 0, 0], [0, 0, 1, 2, 2])
    """
    if "global tokens" not in side.cache:
        chosen = side.columns["global"] > 0
        through = chosen.int().cumsum(0, dtype=torch.int32)
        before = torch.nn.functional.pad(through, (1, 0))
        tokens = torch.arange(len(side), device=chosen.device, dtype=torch.int32)
        places = torch.where(chosen, through - 1, len(side)).long()  # the last place takes what is not listed
        listed = tokens.new_zeros(len(side) + 1).scatter(0, places, tokens)[:-1]
        side.cache["global tokens"] = GlobalTokens(chosen.to(torch.int8), before, listed.contiguous())
    return side.cache["global tokens"]  # type: ignore[no-any-return]


@dataclass
class SequenceBlocks:
    """The blocks of packed sequences; sequences are divided into blocks on their own."""

    tiles: Tensor  # (t, 4) int32: start and end of a block's sequence, its index, and the row of the first block
    order: Tensor  # (t,) int32: first the rows of blocks at the ends of sequences, then the others

    @property
    def index(self) -> Tensor:
        """Return the index of each block in its sequence, (t,)."""
        return self.tiles[:, 2]

    def last(self, size: int) -> Tensor:
        """Return, for each block, the index of the last block of its sequence, (t,), for blocks of `size` tokens."""
        return (self.tiles[:, 1] - self.tiles[:, 0] - 1).clamp(min=0) // size


def split_into_blocks(side: TokenLayout, size: int) -> SequenceBlocks:
    """Return the blocks of `size` tokens of packed sequences, cached for all layers; rows without a block are zeros.

    >>> from pretune.nn.attention.query_key_layout import token_layout
    >>> from pretune.packed import pack_lists
    >>> split_into_blocks(token_layout(pack_lists([[1, 2, 3], [4, 5]])), 2).tiles.tolist()
    [[0, 3, 0, 0], [0, 3, 1, 0], [3, 5, 0, 2], [0, 0, 0, 0]]
    """
    name = ("blocks", size)
    if name not in side.cache:
        offsets = side.offsets.long()
        per_sequence = (offsets.diff() + size - 1) // size  # (s,)
        ends = per_sequence.cumsum(0)
        # An upper bound, because reading the exact number would synchronize.
        rows = torch.arange(len(side) // size + per_sequence.shape[0], device=offsets.device)
        found = torch.searchsorted(ends, rows, right=True)
        real, sequence = found < per_sequence.shape[0], found.clamp(max=per_sequence.shape[0] - 1)
        first = ends[sequence] - per_sequence[sequence]
        index = rows - first
        tiles = torch.stack([offsets[sequence], offsets[sequence + 1], index, first], 1)
        long = real & ((index == 0) | (index == per_sequence[sequence] - 1))
        place = torch.where(long, long.cumsum(0), long.sum() + (~long).cumsum(0)) - 1
        order = torch.empty_like(rows).scatter(0, place, rows)
        side.cache[name] = SequenceBlocks(torch.where(real[:, None], tiles, 0).int().contiguous(), order.int())
    return side.cache[name]  # type: ignore[no-any-return]


def random_block_table(blocks: SequenceBlocks, form: RandomBlocks) -> Tensor:
    """Return the random blocks of each block, (heads, t, r) int32, of a pattern with r random blocks."""
    index, last = blocks.index.long().clamp(max=form.numbers.shape[1] - 1), blocks.last(form.size).long()
    numbers = [form.numbers[:, index, draw] for draw in range(form.numbers.shape[2])]
    return torch.stack(random_blocks(numbers, index, last), -1).int().contiguous()


def random_blocks(numbers: list[Any], block: Any, last: Any) -> list[Any]:
    """Return the random blocks that a query block attends to in BigBird, one per random number in `numbers`.

    `block` is the index of the query block, `last` the index of the last block of its sequence; all tensors broadcast.
    The random blocks are a uniform sample without replacement (Floyd's algorithm) from the blocks between the first and
    the last one that are neither the query block nor its neighbors.

    >>> numbers = [torch.tensor(0), torch.tensor(0)]
    >>> [int(drawn) for drawn in random_blocks(numbers, torch.tensor(1), torch.tensor(9))]
    [3, 8]
    """
    first = (block - 1).clamp(min=1)  # the window's first and last block, the ends of the sequence excluded
    final = torch.minimum(block + 1, last - 1)
    skipped = final - first + 1
    free = last - 1 - skipped
    drawn: list[Tensor] = []
    for count, number in enumerate(numbers):
        top = (free - len(numbers) + count).clamp(min=0)
        place = number * (top + 1) // LEVELS
        for earlier in drawn:
            place = torch.where(place == earlier, -1, place)
        drawn.append(torch.where(place < 0, top, place))
    return [1 + place + torch.where(1 + place >= first, skipped, 0) for place in drawn]
