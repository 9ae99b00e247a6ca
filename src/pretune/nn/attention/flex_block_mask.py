"""The block mask of flex_attention: which blocks of keys each block of queries attends to.

The pattern is evaluated not for pairs of tokens but for pairs of blocks (see `interval_arithmetic`). Blocks with
some visible pairs and blocks with only visible pairs are listed separately, since the latter need no mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pretune.nn.attention.interval_arithmetic import ValueInterval
from pretune.nn.attention.patterns import Pattern
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenColumns, TokenLayout, as_int32

BLOCK = 128  # tokens


def block_mask(layout: AttentionLayout, pattern: Pattern) -> Any:
    """Return flex_attention's BlockMask for a pattern on packed queries and keys, cached for all layers."""
    from torch.nn.attention.flex_attention import BlockMask

    name = ("block mask", pattern.name)
    if name in layout.cache:
        return layout.cache[name]
    queries, keys = as_int32(layout.queries), as_int32(layout.keys)
    sequence_q, sequence_k = queries.sequence, keys.sequence

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = sequence_q[i] == sequence_k[j]
        return same & pattern.allow(TokenColumns(queries, i, h), TokenColumns(keys, j))  # type: ignore[no-any-return]

    some, whole = visible_blocks(layout, pattern)
    layout.cache[name] = BlockMask.from_kv_blocks(
        *_sorted_blocks(some & ~whole),
        *_sorted_blocks(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(len(queries), len(keys)),
    )
    return layout.cache[name]


def _sorted_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks the mask `blocks` selects for each query block, and the indices of all key blocks.

    The selected key blocks come first. Both results have a leading dimension of 1, for the batch.
    """
    # Ranks are counted, not sorted: inside a compiled model, a sort of some fifty blocks took the compiler minutes.
    count = blocks.sum(-1, keepdim=True)
    place = torch.where(blocks, blocks.cumsum(-1), count + (~blocks).cumsum(-1)) - 1
    every = torch.arange(blocks.shape[-1], device=blocks.device, dtype=torch.int32).expand(blocks.shape)
    order = torch.empty_like(every, memory_format=torch.contiguous_format).scatter(-1, place, every)
    return count.squeeze(-1).int()[None], order[None]


def visible_blocks(layout: AttentionLayout, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Return which key blocks are at least partly visible to each query block, and which are fully visible.

    Both masks are (heads, query blocks, key blocks); the first may contain blocks without any visible pair.
    """
    queries, keys = _Blocks(layout.queries), _Blocks(layout.keys)
    # The sequences that two blocks have in common, usually one: any others lie entirely within one of the blocks.
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
    """Packed queries or keys split into blocks of 128 tokens, each of which may contain tokens of several sequences."""

    def __init__(self, side: TokenLayout) -> None:
        n = len(side)
        places = torch.arange(-(-n // BLOCK) * BLOCK, device=side.offsets.device).view(-1, BLOCK)
        rows = places.clamp(max=n - 1)  # the last token fills up the last block
        self.columns = TokenColumns(side, rows)
        sequence = side.sequence[rows]
        self.first, self.last = sequence[:, 0], sequence[:, -1]  # (blocks,)
        self.head = sequence == sequence[:, :1]  # (blocks, BLOCK)
        # Full blocks of one sequence.
        self.alone = (self.first == self.last) & (places[:, -1] < n)


class _Ranges:
    """The ranges of the per-token features of blocks, by name, for each pair of a query block and a key block.

    `blocks` are the query blocks (`dim` 1) or the key blocks (`dim` 0) of the pairs. A range covers only the tokens of
    the sequence that the two blocks of a pair share. `others`, (query blocks, key blocks), is True where this sequence
    is not the first one in its block of `blocks`.
    """

    def __init__(self, blocks: _Blocks, others: Tensor, dim: int, heads: Tensor | None = None) -> None:
        self.blocks, self.others, self.dim, self.heads = blocks, others, dim, heads

    def __getitem__(self, name: str) -> ValueInterval:
        if name == "head":
            assert self.heads is not None
            return ValueInterval(self.heads, self.heads)
        head = self.blocks.head
        column = self.blocks.columns[name]  # (blocks, BLOCK)
        column = column.int() if column.dtype == torch.bool else column
        # Tokens of the other part are replaced by one of this part.
        parts = torch.where(head, column, column[:, :1]), torch.where(head, column[:, -1:], column)
        lows, highs = [part.amin(-1) for part in parts], [part.amax(-1) for part in parts]
        return ValueInterval(self._choose(*lows), self._choose(*highs))

    def _choose(self, first: Tensor, others: Tensor) -> Tensor:
        return torch.where(self.others, others.unsqueeze(self.dim), first.unsqueeze(self.dim))
