"""BigBird's attention (Zaheer et al., 2020): blocks attend to neighbors, both ends of a text, and random blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.flex_block_mask import BLOCK
from pretune.nn.attention.interval_arithmetic import IntervalMask, ValueInterval
from pretune.nn.attention.multi_head import AttentionContext, head_width_of
from pretune.nn.attention.patterns import Pattern, PatternColumns, RandomBlocks, effective_pattern
from pretune.nn.attention.scaled_dot_product import attend_self
from pretune.nn.attention.sparse_layout import LEVELS, random_blocks
from pretune.nn.initialization import ResidualBranch
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.nn.saved_activations import SavedActivations
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import random_bits

MOST_NUMBERS = 1 << 26  # largest size of the table of random blocks


class BlockSparseAttention(ResidualBranch):
    """BigBird's sparse self-attention over blocks of `size` tokens.

    The first and the last block of a sequence attend to all blocks and are attended to by all. Every other block
    attends to itself, to its two neighbors and to `random` random blocks. Short sequences, of up to 5 + 2 · `random`
    blocks, use full attention.
    """

    numbers: Tensor

    def __init__(
        self, width: int, heads: int, *, size: int, random: int, blocks: int, layer: int, dropout: float = 0.0
    ) -> None:
        """Build BigBird's attention for the layer with index `layer`, which seeds the choice of random blocks.

        `size` is the number of tokens per block, `random` the number of random blocks per query block, and `blocks` the
        largest number of blocks in a sequence.
        """
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, head_width_of(width, heads), dropout
        self.size, self.random, self.layer = size, random, layer
        self.qkv = Linear(width, 3 * width, stacked=3)
        self.output = Linear(width, width)
        # Follows from the configuration, so it is not part of a checkpoint.
        self.register_buffer("numbers", random_numbers(layer, heads, blocks, random), persistent=False)

    @property
    def pattern(self) -> Pattern:
        """Return the attention pattern of this BigBird layer, including its random blocks."""
        return block_sparse(self.numbers, self.size, f"{self.size}, {self.random}, layer {self.layer}")

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply self-attention to n packed tokens within the sequences of `context.layout`: (n, width) → (n, width)."""
        qkv = self.qkv(x).view(-1, 3, self.heads, self.head_width)
        dropout = self.dropout if self.training else 0.0
        mixed = attend_self(qkv, context.layout, effective_pattern(self.pattern, context.pattern), dropout=dropout)
        return self.output(mixed.flatten(1))

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this attention layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.add_attention(self.pattern, self.heads * self.head_width)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.qkv)
        saved.width += self.output.in_features


def random_numbers(layer: int, heads: int, blocks: int, random: int) -> Tensor:
    """Return random integers, (heads, blocks, random), from which `random_blocks` computes a layer's random blocks.

    `blocks` is the largest number of blocks in a sequence, and `random` the number of random blocks per query block.
    """
    if heads * blocks * random > MOST_NUMBERS:
        raise PretuneError(
            f"sparse attention with {heads} heads, {blocks} blocks and {random} random blocks needs too large a table; "
            "reduce these sizes in config.json"
        )
    head, block, draw = np.ogrid[:heads, :blocks, :random]
    return torch.from_numpy((random_bits(0, "random blocks", layer, head, block, draw) % LEVELS).astype(np.int32))


def block_sparse(numbers: Tensor, size: int, name: str) -> Pattern:
    """Return BigBird's attention pattern for blocks of `size` tokens.

    `numbers`, from `random_numbers`, determine the random blocks; patterns with the same `name` are considered equal.
    """
    heads, _, random = numbers.shape
    form = RandomBlocks(numbers, size)
    short = form.short

    def allow(query: PatternColumns, key: PatternColumns) -> Any:
        block, its, last = query["position"] // size, key["position"] // size, (query["length"] - 1) // size
        near = ((block - its).abs() <= 1) | (its == 0) | (its == last)
        everything = (block == 0) | (block == last) | (query["length"] <= short)
        return near | everything | is_drawn(query["head"], block, its, last)

    def is_drawn(head: Any, query_block: Any, key_block: Any, last_block: Any) -> Any:
        """Return whether `key_block` is one of the random blocks that `query_block` attends to in head `head`."""
        if isinstance(query_block, ValueInterval):
            return in_some_row(head.low, query_block, key_block, last_block)
        blocks = random_blocks([numbers[head, query_block, draw] for draw in range(random)], query_block, last_block)
        found = key_block < 0
        for drawn in blocks:
            found = found | (drawn == key_block)
        return found

    def in_some_row(
        head: Tensor, query_block: ValueInterval, key_block: ValueInterval, last_block: ValueInterval
    ) -> IntervalMask:
        """Return whether a range of key blocks may contain a random block of any block in a range of query blocks.

        `last_block` is the range of the index of the last block, over the sequences of these tokens.
        """
        steps = torch.arange(BLOCK // size + 2, device=query_block.low.device)
        row = torch.minimum(query_block.low[..., None] + steps, query_block.high[..., None])  # (…, blocks of a tile)
        low, high, last_low = key_block.low[..., None], key_block.high[..., None], last_block.low[..., None]
        some = last_block.low != last_block.high  # tiles of several sequences are not worth looking up
        for one in random_blocks([numbers[head[..., None], row, draw] for draw in range(random)], row, last_low):
            some = some | ((low <= one) & (one <= high)).any(-1)
        return IntervalMask(some, torch.zeros_like(some))

    return Pattern(f"block_sparse({name})", allow, heads=heads, form=form)
