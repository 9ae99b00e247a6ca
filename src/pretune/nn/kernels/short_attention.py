"""Self-attention for short sequences by tiles of the packed tokens: Triton kernels for CUDA.

A kernel with separate tiles for each sequence leaves most of a tile empty where sequences are short. Here a tile is a
run of tokens, of one or more sequences. The kernel reads the keys from the start of the tile's first sequence to the
end of its last one, and masks, for each token, the keys of other sequences. Queries, keys and values stay stacked, (n,
3, heads, d), as one matrix product computes them, and so do their gradients: nothing is copied.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

UNLIMITED = 1 << 30  # more than the length of any sequence
LOG2_E = 1.4426950408889634
# Tokens of a tile and of the tiles it reads; measured with perf/attention.py.
FORWARD = {"tile": 64, "other": 32, "num_warps": 4, "num_stages": 3}
BACKWARD = {"tile": 64, "other": 32, "num_warps": 4, "num_stages": 1}


@triton.jit
def _bounds(first_at, last_at, rows, n, left, right):
    """Return, for each query in `rows`, the start and the end of its keys, and the range of the keys of all queries."""
    inside = rows < n
    first = tl.load(first_at + rows, mask=inside, other=1 << 30)
    last = tl.load(last_at + rows, mask=inside, other=0)
    first = tl.maximum(first, rows - left)
    last = tl.minimum(last, rows + right + 1)
    return first, last, tl.min(first, 0), tl.max(last, 0)


@triton.jit
def _forward(
    qkv_at, out_at, level_at, first_at, last_at, n, scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr,
):  # fmt: skip
    """Compute the attention output of `tile` queries of one head (a Triton kernel).

    The kernel reads `other` keys at a time.
    """
    head = tl.program_id(1)
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = head * width + tl.arange(0, width)[None, :]
    stride = 3 * heads * width
    first, last, begin, end = _bounds(first_at, last_at, rows, n, left, right)
    q = tl.load(qkv_at + columns + rows[:, None].to(tl.int64) * stride, mask=rows[:, None] < n, other=0.0)
    peak = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    mixed = tl.zeros([tile, width], tl.float32)
    for start in range(begin, end, other):
        keys = start + tl.arange(0, other)
        there = qkv_at + columns + heads * width + keys[:, None].to(tl.int64) * stride
        k = tl.load(there, mask=keys[:, None] < end, other=0.0)
        v = tl.load(there + heads * width, mask=keys[:, None] < end, other=0.0)
        own = (keys[None, :] >= first[:, None]) & (keys[None, :] < last[:, None])
        logits = tl.where(own, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: any level is right
        weights = tl.exp2(logits - level[:, None])
        shrink = tl.exp2(peak - level)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    there = out_at + columns + rows[:, None].to(tl.int64) * (heads * width)
    tl.store(there, mixed.to(out_at.dtype.element_ty), mask=rows[:, None] < n)
    # A row that saw nothing gets +inf, so that its weights are zero again in the backward pass.
    level = tl.where(empty, float("inf"), peak + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(level_at + head * n + rows, level, mask=rows < n)


@triton.jit
def _backward(
    qkv_at, out_at, level_at, slope_at, grad_at, first_at, last_at, n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of k and v, then of q, for `tile` tokens of one head (a Triton kernel).

    The kernel reads `other` tokens at a time.
    """
    head = tl.program_id(1)
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = rows[:, None] < n
    columns = head * width + tl.arange(0, width)[None, :]
    stride = 3 * heads * width
    mine = columns + rows[:, None].to(tl.int64) * stride
    kind = grad_at.dtype.element_ty

    # Queries that attend to row j: those of its sequence from j - right to j + left.
    k = tl.load(qkv_at + mine + heads * width, mask=inside, other=0.0)
    v = tl.load(qkv_at + mine + 2 * heads * width, mask=inside, other=0.0)
    first, last, begin, end = _bounds(first_at, last_at, rows, n, right, left)
    grad_k = tl.zeros([tile, width], tl.float32)
    grad_v = tl.zeros([tile, width], tl.float32)
    for start in range(begin, end, other):
        others = start + tl.arange(0, other)
        real = others[:, None] < end
        flat = columns + others[:, None].to(tl.int64) * (heads * width)
        q_there = tl.load(qkv_at + columns + others[:, None].to(tl.int64) * stride, mask=real, other=0.0)
        slope = tl.load(slope_at + flat, mask=real, other=0.0)
        out = tl.load(out_at + flat, mask=real, other=0.0)
        level = tl.load(level_at + head * n + others, mask=others < end, other=float("inf"))
        center = tl.sum(slope.to(tl.float32) * out.to(tl.float32), 1)
        own = (others[None, :] >= first[:, None]) & (others[None, :] < last[:, None])
        weights = tl.where(own, tl.exp2(tl.dot(k, tl.trans(q_there)) * scale - level[None, :]), 0.0)
        grad_v += tl.dot(weights.to(v.dtype), slope)
        grad_logits = weights * (tl.dot(v, tl.trans(slope)) - center[None, :])
        grad_k += tl.dot(grad_logits.to(v.dtype), q_there)
    tl.store(grad_at + mine + heads * width, (grad_k * plain_scale).to(kind), mask=inside)
    tl.store(grad_at + mine + 2 * heads * width, grad_v.to(kind), mask=inside)

    q = tl.load(qkv_at + mine, mask=inside, other=0.0)
    first, last, begin, end = _bounds(first_at, last_at, rows, n, left, right)
    flat = columns + rows[:, None].to(tl.int64) * (heads * width)
    slope = tl.load(slope_at + flat, mask=inside, other=0.0)
    out = tl.load(out_at + flat, mask=inside, other=0.0)
    level = tl.load(level_at + head * n + rows, mask=rows < n, other=float("inf"))
    center = tl.sum(slope.to(tl.float32) * out.to(tl.float32), 1)
    grad_q = tl.zeros([tile, width], tl.float32)
    for start in range(begin, end, other):
        others = start + tl.arange(0, other)
        real = others[:, None] < end
        there = qkv_at + columns + heads * width + others[:, None].to(tl.int64) * stride
        k_there = tl.load(there, mask=real, other=0.0)
        v_there = tl.load(there + heads * width, mask=real, other=0.0)
        own = (others[None, :] >= first[:, None]) & (others[None, :] < last[:, None])
        weights = tl.where(own, tl.exp2(tl.dot(q, tl.trans(k_there)) * scale - level[:, None]), 0.0)
        grad_logits = weights * (tl.dot(slope, tl.trans(v_there)) - center[:, None])
        grad_q += tl.dot(grad_logits.to(q.dtype), k_there)
    tl.store(grad_at + mine, (grad_q * plain_scale).to(kind), mask=inside)


@torch.library.custom_op("pretune::attend_tiles", mutates_args=(), device_types="cuda")
def short_attention(
    qkv: Tensor, first: Tensor, last: Tensor, scale: float, left: int, right: int
) -> tuple[Tensor, Tensor]:
    """Compute self-attention of n packed tokens, (n, 3, heads, d), within sequences and windows.

    The sequence of token i begins at `first[i]` and ends before `last[i]`; a token attends to at most `left` tokens
    before and `right` tokens after it (`UNLIMITED`: no limit). Return the output, (n, heads, d), and, for the
    backward pass, the log-sum-exp of the logits, (heads, n).
    """
    n, _, heads, width = qkv.shape
    qkv = qkv.contiguous()
    out = torch.empty(n, heads, width, dtype=qkv.dtype, device=qkv.device)
    level = torch.empty(heads, n, dtype=torch.float32, device=qkv.device)
    grid = (triton.cdiv(n, FORWARD["tile"]), heads)
    _forward[grid](qkv, out, level, first, last, n, scale * LOG2_E, left, right, heads=heads, width=width, **FORWARD)
    return out, level


@short_attention.register_fake
def _(qkv: Tensor, first: Tensor, last: Tensor, scale: float, left: int, right: int) -> tuple[Tensor, Tensor]:
    n, _, heads, width = qkv.shape
    return qkv.new_empty(n, heads, width), qkv.new_empty(heads, n, dtype=torch.float32)


@torch.library.custom_op("pretune::attend_tiles_backward", mutates_args=(), device_types="cuda")
def short_attention_backward(
    slope: Tensor, qkv: Tensor, out: Tensor, level: Tensor, first: Tensor, last: Tensor,
    scale: float, left: int, right: int,
) -> Tensor:  # fmt: skip
    """Return the gradient of `qkv`, (n, 3, heads, d), given the gradient `slope` of the output, (n, heads, d).

    `out` and `level` are the results of `short_attention`, whose other arguments are the same here.
    """
    n, _, heads, width = qkv.shape
    grad = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    grid = (triton.cdiv(n, BACKWARD["tile"]), heads)
    _backward[grid](
        qkv.contiguous(), out, level, slope.contiguous(), grad, first, last, n, scale * LOG2_E, scale, left, right,
        heads=heads, width=width, **BACKWARD,
    )  # fmt: skip
    return grad


@short_attention_backward.register_fake
def _(slope, qkv, out, level, first, last, scale, left, right):
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, first, last, ctx.scale, ctx.left, ctx.right = inputs
    ctx.save_for_backward(qkv, *output, first, last)


def _differentiate(ctx, slope, _):
    return short_attention_backward(slope, *ctx.saved_tensors, ctx.scale, ctx.left, ctx.right), *[None] * 5


short_attention.register_autograd(_differentiate, setup_context=_keep)
