"""A kernel for attention of one query per sequence to a key-value cache, which reads only the slots that are used."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SLOTS = 64  # per step of a program
UNLIMITED = 1 << 30  # larger than any number of tokens


@triton.jit
def _attend(
    q_at, k_at, v_at, table_at, used_at, out_at, q_stride, slots, left, scale,
    heads: tl.constexpr, width: tl.constexpr, shared: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, width)
    q = tl.load(q_at + row * q_stride + head * width + column).to(tl.float32) * scale
    end = tl.minimum(tl.load(used_at + row).to(tl.int32) + 1, slots)
    first = tl.maximum(end - 1 - left, 0)
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([width], tl.float32)
    for start in range(first, end, block):
        place = start + tl.arange(0, block)
        inside = place < end
        if shared:
            slot = tl.load(table_at + row * slots + place, mask=inside, other=0)
        else:
            slot = row * slots + place
        at = (slot[:, None] * heads + head) * width + column[None, :]
        k = tl.load(k_at + at, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_at + at, mask=inside[:, None], other=0.0).to(tl.float32)
        logits = tl.where(inside, tl.sum(k * q[None, :], 1), float("-inf"))
        higher = tl.maximum(highest, tl.max(logits, 0))
        weights = tl.exp(logits - higher)
        shrink = tl.exp(highest - higher)
        mixed = mixed * shrink + tl.sum(v * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        highest = higher
    kind = out_at.dtype.element_ty
    tl.store(out_at + (row * heads + head) * width + column, (mixed / total).to(kind))


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, used: Tensor, slots: int, table: Tensor | None, left: int, scale: float
) -> Tensor:
    """Return the attention output of one query per sequence, (sequences, heads, d), in the shape of the queries q.

    Keys and values, (sequences · slots, heads, d), are those of the cache. Each query attends to its own token, which
    is number `used` of its sequence, (sequences,), and to at most `left` tokens before it. With a `table`, (sequences,
    slots), the tokens of a sequence are in the slots that the table lists.
    """
    sequences, heads, width = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    q = q if q.stride()[1:] == (width, 1) else q.contiguous()
    _attend[(sequences, heads)](
        q, k, v, used if table is None else table, used, out, q.stride(0), slots, left, scale,
        heads=heads, width=width, shared=table is not None, block=SLOTS, num_warps=4,
    )  # fmt: skip
    return out
