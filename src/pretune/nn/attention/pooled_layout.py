"""Pooling of neighboring tokens within packed sequences (Dai et al., 2020, Funnel-Transformer).

Pooling halves every sequence of a packed batch: token j of the pooled sequence stands for two neighboring tokens.

    tokens        c 1 2 3 4 5 6 | c 1 2
    separate_cls  c c 1 2 3 4 5 | c c 1        the first token is repeated, the last dropped with truncate_seq
    pooled        cc 12 34 5    | cc 1

Sequences of one token, and of two with `separate_cls`, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pretune.nn.attention.query_key_layout import TokenLayout
from pretune.runtime.arrays import Array

SEPARATE = "separate"  # the column of tokens that are kept apart when others are pooled


@dataclass(frozen=True)
class TokenPooling:
    """The settings for pooling neighboring tokens two by two, as the examples in the module's docstring show.

    With `separate_cls`, the first token is repeated, so that it is pooled only with itself; with `truncate_seq`, the
    last token is then dropped.
    """

    separate_cls: bool = True
    truncate_seq: bool = True

    @property
    def repeated(self) -> int:
        """Return how many times the first token is repeated before the tokens are pooled two by two: 0 or 1."""
        return int(self.separate_cls)

    @property
    def added(self) -> int:
        """Return how many tokens a sequence gains before its tokens are pooled two by two: 0 or 1."""
        return int(self.separate_cls and not self.truncate_seq)

    def lengths(self, lengths: Array) -> Array:
        """Return the lengths of sequences after pooling, given their lengths before pooling.

        >>> import numpy as np
        >>> TokenPooling().lengths(np.array([7, 3, 2, 1, 0])).tolist()
        [4, 2, 2, 1, 0]
        """
        short = lengths <= 1 + self.repeated
        pooled: Array = (lengths + self.added + 1) // 2 * ~short + lengths * short
        return pooled

    def longest(self, length: int) -> int:
        """Return the largest length of a pooled sequence, for sequences of up to `length` tokens."""
        return max(min(length, 1 + self.repeated), (length + self.added + 1) // 2)

    def pool(self, side: TokenLayout) -> PooledTokens:
        """Pool tokens two by two; return the layout of the pooled tokens, and which tokens each of them stands for.

        In a compiled graph, or without offsets on the host, the number of pooled tokens depends only on the shapes of
        the batch; unused positions at the end then form additional sequences of the maximum length or less.
        """
        offsets = side.offsets.long()
        count, sequences = len(side), offsets.shape[0] - 1
        before = offsets.diff()
        after: Tensor = self.lengths(before)  # type: ignore[arg-type, assignment]
        ends = torch.cat([after.new_zeros(1), after.cumsum(0)])
        longest, host, keys = self.longest(side.max_length), None, side
        if side.host_offsets is not None and not torch.compiler.is_compiling():
            lengths = self.lengths(side.host_offsets[1:] - side.host_offsets[:-1])
            total = int(lengths.sum())
            host = side.host_offsets.copy()
            host[1:] = lengths.cumsum()
        else:
            total = (count + 2 * sequences) // 2
            steps = torch.arange(1, -(-total // longest) + 1, device=offsets.device)
            ends = torch.cat([ends, (ends[-1] + longest * steps).clamp(max=total)])
            keys = replace(side, offsets=torch.cat([side.offsets, side.offsets[-1:].expand(len(steps))]), cache={})
        places = torch.arange(total, device=offsets.device)
        owner = torch.searchsorted(ends, places, right=True) - 1
        source = owner.clamp(max=sequences - 1)  # filler stands for any tokens
        step, start, length = places - ends[owner], offsets[source], before[source]
        whole = length <= 1 + self.repeated  # sequences that stay as they are
        first = torch.where(whole, step, (2 * step - self.repeated).clamp(min=0))
        last = torch.minimum(2 * step + 1, length + self.added - 1) - self.repeated
        last = torch.where(whole, step, last.clamp(min=0))
        first, last = ((start + at).clamp(max=count - 1) for at in (first, last))
        columns = {name: column[first] for name, column in side.columns.items()}
        pooled = TokenLayout(ends.int(), longest, columns, host)
        own = side.sequence.long().clamp(max=sequences - 1)
        step, length = torch.arange(count, device=offsets.device) - offsets[own], before[own]
        to = torch.where(length <= 1 + self.repeated, step, (step + self.repeated) // 2)
        return PooledTokens(pooled, keys, first, last, torch.where(to < after[own], ends[own] + to, -1))


@dataclass(frozen=True)
class PooledTokens:
    """The layout of m pooled tokens, and the mapping between them and the n tokens that were pooled."""

    layout: TokenLayout
    before: TokenLayout  # the n tokens, in as many sequences: for unused places, empty ones are added
    first: Tensor  # (m,) the first token that each pooled token stands for
    last: Tensor  # (m,) the last of them, which may be the same
    index: Tensor  # (n,) the pooled token that stands for each token; -1 for tokens that were dropped

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the states that each pooled token stands for: (n, width) → (m, width)."""
        return (x[self.first] + x[self.last]) / 2

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum of the states that each pooled token stands for: (n, width) → (m, width)."""
        return torch.maximum(x[self.first], x[self.last])

    def follow(self, index: Tensor) -> Tensor:
        """Return, for each of some tokens, the index of the pooled token that stands for it, or -1 if it was dropped.

        `index` has the indices of these tokens before pooling; -1 stays -1.
        """
        return torch.where(index < 0, -1, self.index[index.clamp(min=0)])


def upsample(x: Tensor, index: Tensor) -> Tensor:
    """Return, for each token, the state of the pooled token at its `index`; 0 for -1: (m, width) → (n, width).

    >>> upsample(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1, 1, -1])).flatten().tolist()
    [1.0, 2.0, 2.0, 0.0]
    """
    return x[index.clamp(min=0)].masked_fill((index < 0)[:, None], 0.0)
