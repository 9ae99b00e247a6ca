"""Attention within chunks of a sequence and to preceding chunks; time and memory are linear in the length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.patterns import Pattern
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenColumns, TokenLayout, starts_and_lengths
from pretune.nn.attention.scaled_dot_product import ScoreMod
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

SELF_LOGIT = -1e5  # the logit of a token with itself, if it should attend to itself only when it attends to no other


@dataclass(frozen=True)
class Chunks:
    """The sequences of a batch split into chunks of `size` tokens; the last chunk of a sequence may be incomplete."""

    size: int
    count: int  # of all sequences; some at the end may be unused
    slots: Tensor  # (n,) the slot of each token, of count · size
    index: Tensor  # (count,) the index of a chunk within its sequence
    per_sequence: Tensor  # (count,) the number of chunks in the sequence of a chunk
    max_per_sequence: int  # the largest number of chunks in a sequence

    @property
    def first(self) -> Tensor:
        """Return, for each chunk, the index of the first chunk of its sequence, (count,)."""
        return torch.arange(self.count, device=self.index.device) - self.index

    @property
    def last(self) -> Tensor:
        """Return, for each chunk, the index of the last chunk of its sequence, (count,)."""
        return (self.first + self.per_sequence - 1).clamp(max=self.count - 1)

    def ring(self, rounds: int, before: int) -> Tensor:
        """Return, for each chunk, the indices of the chunks that it attends to: (rounds · count, before + 1).

        These are the `before` chunks before it, and the chunk itself. The chunks of a sequence in all hashing rounds
        form a ring, so the chunk before the first is the last. Chunk c of round r has the index r · count + c.
        """
        turns = torch.arange(rounds, device=self.index.device)[:, None]
        place = turns * self.per_sequence + self.index  # (rounds, count)
        back = torch.arange(-before, 1, device=place.device)
        place = (place[..., None] + back) % (rounds * self.per_sequence[:, None])  # (rounds, count, before + 1)
        turn, index = place // self.per_sequence[:, None], place % self.per_sequence[:, None]
        return (turn * self.count + self.first[:, None] + index).flatten(0, 1)


def split_into_chunks(layout: AttentionLayout, size: int) -> Chunks:
    """Split the packed sequences of an attention call into chunks of `size` tokens, and cache them for all layers."""
    side = layout.queries
    if layout.keys is not side:
        raise PretuneError(
            "chunked attention supports self-attention only, without memory or cache; choose a model with another kind of attention"
        )
    name = ("chunks", size)
    if name not in side.cache:
        side.cache[name] = _cut(side, size)
    return side.cache[name]  # type: ignore[no-any-return]


def _cut(tokens: TokenLayout, size: int) -> Chunks:
    """Return the packed sequences `tokens` split into chunks of `size` tokens."""
    offsets = tokens.offsets.long()
    per_sequence = (offsets.diff() + size - 1) // size  # (s,)
    first = per_sequence.cumsum(0) - per_sequence
    sequence = tokens.sequence.long()
    slots = first[sequence] * size + torch.arange(len(tokens), device=offsets.device) - offsets[sequence]
    if tokens.host_offsets is None:  # an upper bound, because reading the exact number would synchronize
        count = len(tokens) // size + len(per_sequence)
    else:
        count = int((-(-starts_and_lengths(tokens)[1] // size)).sum())
    chunks = torch.arange(count, device=offsets.device)
    owner = torch.searchsorted(per_sequence.cumsum(0), chunks, right=True).clamp(max=len(per_sequence) - 1)
    return Chunks(
        size, count, slots, chunks - first[owner], per_sequence[owner].clamp(min=1), -(-tokens.max_length // size)
    )


def attend_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    pattern: Pattern,
    score: ScoreMod | None = None,
    scale: float | None = None,
    *,
    size: int,
    before: int = 0,
    order: Tensor | None = None,
    self_last: bool = False,
) -> Tensor:
    """Compute attention in which a token attends to its own chunk and the `before` chunks before it: (n, heads, d).

    `q`, `k` and `v` are (n, heads, d) for n packed tokens. Each row of `order`, (heads, rounds, n), permutes the tokens
    before they are split into chunks of `size` (None: no permutation); the tokens of one sequence stay together. The
    chunks of all rounds of a sequence form a ring, in which the last chunk precedes the first. The outputs of the
    rounds are averaged, weighted by their total attention weight (the sum of the exponentials of the logits). With
    `self_last`, a token attends to itself only if it can attend to no other token.

    >>> from pretune.nn.attention.query_key_layout import self_layout
    >>> from pretune.nn.attention.patterns import causal
    >>> from pretune.packed import pack_lists
    >>> x = torch.randn(5, 2, 8)
    >>> attend_chunks(x, x, x, self_layout(pack_lists([[1, 2, 3], [4, 5]])), causal, size=2, before=1).shape
    torch.Size([5, 2, 8])
    """
    n, heads, _ = q.shape
    chunks, side = split_into_chunks(layout, size), layout.queries
    order = torch.arange(n, device=q.device)[None, None] if order is None else order
    rounds = order.shape[1]
    # The token in each slot of each round, n in empty ones: (heads, rounds · chunks, size).
    rows = order.new_full((*order.shape[:2], chunks.count * size), n)
    rows[..., chunks.slots] = order
    rows = rows.view(-1, rounds * chunks.count, size)
    seen_rows = rows[:, chunks.ring(rounds, before)].flatten(2)  # (heads, rounds · chunks, (before + 1) · size)
    real, at, seen_at = seen_rows < n, rows.clamp(max=n - 1), seen_rows.clamp(max=n - 1)

    head = torch.arange(heads, device=q.device)[:, None, None]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (heads, n, d)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = (q[head, at] @ k[head, seen_at].transpose(-2, -1)).float() * scale
    query, key = TokenColumns(side, at[..., :, None]), TokenColumns(side, seen_at[..., None, :])
    if score is not None:
        logits = score(logits, head[..., None], query, key)
    seen = real[..., None, :] & pattern.allow(query, key)  # (heads, rounds · chunks, size, (before + 1) · size)
    logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    if self_last:
        alone = rows[..., :, None] == seen_rows[..., None, :]
        logits, seen = logits.masked_fill(alone, SELF_LOGIT), seen | alone
    amount = logits.logsumexp(-1, keepdim=True)  # too coarse near SELF_LOGIT to normalize weights by it
    out = logits.softmax(-1).to(v.dtype) @ v[head, seen_at]
    out = out * seen.any(-1, keepdim=True)  # queries that see no key get 0

    # From slots back to tokens: (heads, rounds, n, …).
    places = torch.empty_like(order).scatter_(2, order, chunks.slots.expand_as(order))
    places = places + torch.arange(rounds, device=q.device)[:, None] * (chunks.count * size)
    out, amount = out.flatten(1, 2)[head, places], amount.flatten(1, 2)[head, places]
    return (out * amount.softmax(1).to(out.dtype)).sum(1).transpose(0, 1)


@dataclass(frozen=True)
class ChunkedAttention:
    """Chunked self-attention: a token attends to its own chunk of the text and to the `before` chunks before it."""

    size: int
    before: int

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, pattern: Pattern) -> Tensor:
        """Return, for each query, the weighted mean of the values that it may attend to: (n, heads, d)."""
        return attend_chunks(q, k, v, layout, pattern, size=self.size, before=self.before)

    def operations(self, lengths: Array, heads: int, head_width: int, pattern: Pattern) -> float:
        """Return the FLOPs of chunked attention over sequences of the given lengths."""
        return float(4 * heads * head_width * pairs_in_chunks(lengths, self.size, self.before).sum())


def pairs_in_chunks(lengths: Array, size: int, before: int) -> Array:
    """Return the number of query-key pairs per sequence for attention within chunks of `size` tokens.

    Each token is counted as if it attended to (before + 1) · size tokens, those of its own chunk and of `before`
    chunks before it, or in a shorter sequence to all of its tokens.

    >>> pairs_in_chunks(np.array([6.0, 2.0]), 2, 1).tolist()
    [24.0, 4.0]
    """
    return np.asarray(lengths * np.minimum(lengths, (before + 1) * size))
