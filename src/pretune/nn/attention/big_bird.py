"""BigBird's attention (Zaheer et al., 2020): each block of tokens attends to its neighbors, the ends of its text, and random blocks.

Random blocks are drawn for every layer, head and block of queries, without replacement, from all blocks of the sequence that
the block does not attend to otherwise; they are the same in training and evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.flex_block_mask import BLOCK
from pretune.nn.attention.interval_arithmetic import IntervalMask, ValueInterval
from pretune.nn.attention.multi_head import AttentionContext, head_width_of
from pretune.nn.attention.patterns import Pattern, PatternColumns, effective_pattern
from pretune.nn.attention.scaled_dot_product import attend_self
from pretune.nn.initialization import ResidualBranch
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import random_bits

LEVELS = 1 << 15  # of a random number: times a number of blocks, it still fits into 32 bits
MOST_NUMBERS = 1 << 26  # largest size of the table of random blocks


class BlockSparseAttention(ResidualBranch):
    """BigBird's sparse self-attention over blocks of `size` tokens.

    The first and the last block of a sequence attend to all and are attended to by all. Every other block attends to itself,
    to its two neighbors and to `random` more. Sequences of up to (5 + 2 · `random`) · `size` tokens use full attention, as in `transformers`.
    """

    numbers: Tensor

    def __init__(
        self, width: int, heads: int, *, size: int, random: int, blocks: int, layer: int, dropout: float = 0.0
    ) -> None:
        """Build the layer; `blocks` is the largest number of blocks in a sequence, `layer` selects the random blocks."""
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, head_width_of(width, heads), dropout
        self.size, self.random, self.layer = size, random, layer
        self.qkv = Linear(width, 3 * width, stacked=3)
        self.output = Linear(width, width)
        # Follows from the configuration, so it is not part of a checkpoint.
        self.register_buffer("numbers", random_numbers(layer, heads, blocks, random), persistent=False)

    @property
    def pattern(self) -> Pattern:
        """Return the attention pattern of this layer, with its own random blocks."""
        return block_sparse(self.numbers, self.size, f"{self.size}, {self.random}, layer {self.layer}")

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to the tokens of each packed sequence: (n, width) → (n, width)."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        dropout = self.dropout if self.training else 0.0
        mixed = attend_self(qkv, context.layout, effective_pattern(self.pattern, context.pattern), dropout=dropout)
        return self.output(mixed.flatten(1))

    def add_operations(self, sizes: OperationSizes) -> None:
        """Record this attention layer in `sizes`, from which the FLOPs of the model are computed."""
        sizes.add_attention(self.pattern, self.heads * self.head_width)


def random_numbers(layer: int, heads: int, blocks: int, random: int) -> Tensor:
    """Return (heads, blocks, random) uniform random integers below LEVELS, a fixed function of `layer` and index."""
    if heads * blocks * random > MOST_NUMBERS:
        raise PretuneError(
            f"sparse attention with {heads} heads, {blocks} blocks and {random} random blocks needs too large a table; "
            "check these sizes in config.json"
        )
    head, block, draw = np.ogrid[:heads, :blocks, :random]
    return torch.from_numpy((random_bits(0, "random blocks", layer, head, block, draw) % LEVELS).astype(np.int32))


def random_blocks(numbers: list[Any], block: Any, last: Any) -> list[Any]:
    """Return the random blocks that the query block `block` attends to, one for each random number; all tensors broadcast.

    The random blocks are a uniform sample without replacement (Floyd's algorithm) of the blocks between the first and the
    `last` one, without the query block and its neighbors.

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


def block_sparse(numbers: Tensor, size: int, name: str) -> Pattern:
    """Return BigBird's pattern for blocks of `size` tokens; `numbers` (heads, blocks, random) select its random blocks."""
    heads, _, random = numbers.shape
    short = (5 + 2 * random) * size

    def allow(query: PatternColumns, key: PatternColumns) -> Any:
        block, its, last = query["position"] // size, key["position"] // size, (query["length"] - 1) // size
        near = ((block - its).abs() <= 1) | (its == 0) | (its == last)
        everything = (block == 0) | (block == last) | (query["length"] <= short)
        return near | everything | is_drawn(query["head"], block, its, last)

    def is_drawn(head: Any, block: Any, its: Any, last: Any) -> Any:
        """Return whether the key block `its` is a random block of the query block `block`."""
        if isinstance(block, ValueInterval):
            return in_some_row(head.low, block, its, last)
        blocks = random_blocks([numbers[head, block, draw] for draw in range(random)], block, last)
        found = its < 0
        for drawn in blocks:
            found = found | (drawn == its)
        return found

    def in_some_row(head: Tensor, block: ValueInterval, its: ValueInterval, last: ValueInterval) -> IntervalMask:
        """Return, for tiles of BLOCK tokens, whether a key tile may contain a random block of a query tile."""
        steps = torch.arange(BLOCK // size + 2, device=block.low.device)
        row = torch.minimum(block.low[..., None] + steps, block.high[..., None])  # (…, blocks of a tile)
        low, high, last_low = its.low[..., None], its.high[..., None], last.low[..., None]
        some = last.low != last.high  # tiles of several sequences are not worth looking up
        for one in random_blocks([numbers[head[..., None], row, draw] for draw in range(random)], row, last_low):
            some = some | ((low <= one) & (one <= high)).any(-1)
        return IntervalMask(some, torch.zeros_like(some))

    return Pattern(f"block_sparse({name})", allow, heads=heads)
