"""BigBird's block-sparse self-attention over packed sequences: Triton kernels for CUDA.

A program computes one block of queries (or, in the backward pass, of keys) of one head. It finds the blocks that it
needs, instead of reading a list of them: both ends of the sequence, its neighbors, and the blocks that random draws
connect it to. Then it reads these blocks one by one; only rows beyond the end of a sequence are masked. The first and
the last block of a sequence read the whole sequence, so they start first.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretune.nn.kernels.attention_steps import (
    LOG2_E,
    attention_step,
    key_gradient_step,
    normalize,
    output_centers,
    query_gradient_step,
)

FORWARD = {"num_warps": 4, "num_stages": 2}
BACKWARD = {"num_warps": 4, "num_stages": 1}


@triton.jit
def _place(tiles_at, tile, size: tl.constexpr, short):
    """Return where the sequence of a block begins and ends, the block's index, the last one, the tile of the first one,
    and whether the block attends to all blocks and all attend to it.
    """
    begin = tl.load(tiles_at + tile * 4)
    end = tl.load(tiles_at + tile * 4 + 1)
    index = tl.load(tiles_at + tile * 4 + 2)
    first = tl.load(tiles_at + tile * 4 + 3)
    last = tl.maximum(end - begin - 1, 0) // size
    whole = (index == 0) | (index == last) | (end - begin <= short)
    return begin, end, index, last, first, whole


# Integers are not specialized, so that batches with other numbers of tokens or sequences need no compilation.
@triton.jit(do_not_specialize=["n", "count", "short"])
def _forward(
    qkv_at, out_at, level_at, tiles_at, order_at, drawn_at, n, count, scale, short,
    heads: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    blocks: tl.constexpr, random: tl.constexpr, slots: tl.constexpr,
):  # fmt: skip
    """Compute the attention output of one block of queries of one head (a Triton kernel)."""
    head = tl.program_id(0)
    tile = tl.load(order_at + tl.program_id(1))
    begin, end, index, last, _, whole = _place(tiles_at, tile, size, short)
    every = tl.arange(0, blocks)
    slot = tl.arange(0, slots)
    drawn = tl.load(drawn_at + (head * count + tile) * random + slot, mask=slot < random, other=-1)
    hit = tl.max((every[:, None] == drawn[None, :]).to(tl.int32), 1) > 0
    near = (every >= index - 1) & (every <= index + 1)
    seen = (hit | near | (every == 0) | (every == last) | whole) & (every <= last)
    rank = tl.cumsum(seen.to(tl.int32), 0)

    stride: tl.constexpr = 3 * heads * width
    columns = head * width + tl.arange(0, width)[None, :]
    rows = begin + index * size + tl.arange(0, size)
    inside = (rows < end)[:, None]
    q = tl.load(qkv_at + columns + rows[:, None].to(tl.int64) * stride, mask=inside, other=0.0)
    peak = tl.full([size], float("-inf"), tl.float32)
    total = tl.zeros([size], tl.float32)
    mixed = tl.zeros([size, width], tl.float32)
    for step in range(tl.max(rank, 0)):
        block = tl.sum(tl.where(seen & (rank == step + 1), every, 0), 0)
        keys = begin + block * size + tl.arange(0, size)
        there = qkv_at + columns + heads * width + keys[:, None].to(tl.int64) * stride
        k = tl.load(there, mask=(keys < end)[:, None], other=0.0)
        v = tl.load(there + heads * width, mask=(keys < end)[:, None], other=0.0)
        peak, total, mixed = attention_step(q, k, v, (keys < end)[None, :], scale, peak, total, mixed)
    mixed, level = normalize(peak, total, mixed)
    there = out_at + columns + rows[:, None].to(tl.int64) * (heads * width)
    tl.store(there, mixed.to(out_at.dtype.element_ty), mask=inside)
    tl.store(level_at + head * n + rows, level, mask=rows < end)


@triton.jit(do_not_specialize=["n", "count", "short"])
def _backward(
    qkv_at, slope_at, level_at, center_at, grad_at, tiles_at, order_at, drawn_at, n, count, scale, plain_scale, short,
    heads: tl.constexpr, width: tl.constexpr, size: tl.constexpr,
    blocks: tl.constexpr, random: tl.constexpr, slots: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and their values, or of queries, of one head (a Triton kernel)."""
    head = tl.program_id(0)
    program = tl.program_id(1)
    tile = tl.load(order_at + program // 2)
    begin, end, index, last, first, whole = _place(tiles_at, tile, size, short)
    every = tl.arange(0, blocks)
    slot = tl.arange(0, slots)
    near = ((every >= index - 1) & (every <= index + 1)) | (every == 0) | (every == last) | whole

    stride: tl.constexpr = 3 * heads * width
    columns = head * width + tl.arange(0, width)[None, :]
    rows = begin + index * size + tl.arange(0, size)
    inside = (rows < end)[:, None]
    mine = columns + rows[:, None].to(tl.int64) * stride
    kind = grad_at.dtype.element_ty
    if program % 2 == 0:  # keys
        place = (head * count + first + every)[:, None] * random + slot[None, :]
        sources = tl.load(drawn_at + place, mask=(every <= last)[:, None] & (slot < random)[None, :], other=-1)
        seen = (near | (tl.max((sources == index).to(tl.int32), 1) > 0)) & (every <= last)
        rank = tl.cumsum(seen.to(tl.int32), 0)
        k = tl.load(qkv_at + mine + heads * width, mask=inside, other=0.0)
        v = tl.load(qkv_at + mine + 2 * heads * width, mask=inside, other=0.0)
        grad_k = tl.zeros([size, width], tl.float32)
        grad_v = tl.zeros([size, width], tl.float32)
        for step in range(tl.max(rank, 0)):
            block = tl.sum(tl.where(seen & (rank == step + 1), every, 0), 0)
            queries = begin + block * size + tl.arange(0, size)
            real = queries < end
            q = tl.load(qkv_at + columns + queries[:, None].to(tl.int64) * stride, mask=real[:, None], other=0.0)
            flat = columns + queries[:, None].to(tl.int64) * (heads * width)
            slope = tl.load(slope_at + flat, mask=real[:, None], other=0.0)
            level = tl.load(level_at + head * n + queries, mask=real, other=float("inf"))
            center = tl.load(center_at + head * n + queries, mask=real, other=0.0)
            more_k, more_v = key_gradient_step(k, v, q, slope, level, center, real[None, :], scale)
            grad_k += more_k
            grad_v += more_v
        tl.store(grad_at + mine + heads * width, (grad_k * plain_scale).to(kind), mask=inside)
        tl.store(grad_at + mine + 2 * heads * width, grad_v.to(kind), mask=inside)
    else:  # queries
        drawn = tl.load(drawn_at + (head * count + tile) * random + slot, mask=slot < random, other=-1)
        hit = tl.max((every[:, None] == drawn[None, :]).to(tl.int32), 1) > 0
        seen = (near | hit) & (every <= last)
        rank = tl.cumsum(seen.to(tl.int32), 0)
        q = tl.load(qkv_at + mine, mask=inside, other=0.0)
        flat = columns + rows[:, None].to(tl.int64) * (heads * width)
        slope = tl.load(slope_at + flat, mask=inside, other=0.0)
        level = tl.load(level_at + head * n + rows, mask=rows < end, other=float("inf"))
        center = tl.load(center_at + head * n + rows, mask=rows < end, other=0.0)
        grad_q = tl.zeros([size, width], tl.float32)
        for step in range(tl.max(rank, 0)):
            block = tl.sum(tl.where(seen & (rank == step + 1), every, 0), 0)
            keys = begin + block * size + tl.arange(0, size)
            there = qkv_at + columns + heads * width + keys[:, None].to(tl.int64) * stride
            k = tl.load(there, mask=(keys < end)[:, None], other=0.0)
            v = tl.load(there + heads * width, mask=(keys < end)[:, None], other=0.0)
            grad_q += query_gradient_step(q, slope, level, center, k, v, (keys < end)[None, :], scale)
        tl.store(grad_at + mine, (grad_q * plain_scale).to(kind), mask=inside)


def _constants(drawn: Tensor, width: int, size: int, longest: int, options: dict[str, int]) -> dict[str, int]:
    """Return the compile-time constants of a kernel: `options`, and what its tables and the longest sequence determine."""
    random = drawn.shape[2]
    slots, blocks = triton.next_power_of_2(random), max(16, triton.next_power_of_2(triton.cdiv(longest, size)))
    warps = max(
        options["num_warps"], 8 if size * width > 64 * 64 else 4
    )  # larger tiles need the registers of more warps
    return {**options, "num_warps": warps, "size": size, "blocks": blocks, "random": random, "slots": slots}


def launch_forward(
    qkv: Tensor, tiles: Tensor, order: Tensor, drawn: Tensor, scale: float, size: int, short: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Compute `block_sparse_attention`, without registering it with autograd."""
    n, _, heads, width = qkv.shape
    out = torch.empty(n, heads, width, dtype=qkv.dtype, device=qkv.device)
    level = torch.empty(heads, n, dtype=torch.float32, device=qkv.device)
    _forward[(heads, len(tiles))](
        qkv.contiguous(), out, level, tiles, order, drawn, n, len(tiles), scale * LOG2_E, short,
        heads=heads, width=width, **_constants(drawn, width, size, longest, FORWARD),
    )  # fmt: skip
    return out, level


def launch_backward(
    slope: Tensor, qkv: Tensor, out: Tensor, level: Tensor, tiles: Tensor, order: Tensor, drawn: Tensor,
    scale: float, size: int, short: int, longest: int,
) -> Tensor:  # fmt: skip
    """Compute `block_sparse_attention_backward`."""
    n, _, heads, width = qkv.shape
    slope = slope.contiguous()
    grad = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    _backward[(heads, 2 * len(tiles))](
        qkv.contiguous(), slope, level, output_centers(out, slope), grad, tiles, order, drawn,
        n, len(tiles), scale * LOG2_E, scale, short,
        heads=heads, width=width, **_constants(drawn, width, size, longest, BACKWARD),
    )  # fmt: skip
    return grad


@torch.library.custom_op("pretune::block_sparse_attention", mutates_args=(), device_types="cuda")
def block_sparse_attention(
    qkv: Tensor, tiles: Tensor, order: Tensor, drawn: Tensor, scale: float, size: int, short: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Compute BigBird's self-attention of n packed tokens, (n, 3, heads, d), in blocks of `size` tokens.

    `tiles`, (t, 4), has one row per block: where its sequence begins and ends, the index of the block in its sequence,
    and the row of the sequence's first block. Rows of empty sequences are padding. `order` is the order in which blocks
    are computed, (t,), and `drawn` the random blocks of each block, (heads, t, random). All are int32. Sequences of up
    to `short` tokens use full attention; `longest` is an upper bound on the length of a sequence.

    Return the output, (n, heads, d), and, for the backward pass, the log-sum-exp of the logits, (heads, n).
    """
    return launch_forward(qkv, tiles, order, drawn, scale, size, short, longest)


@block_sparse_attention.register_fake
def _(qkv, tiles, order, drawn, scale, size, short, longest):
    n, _, heads, width = qkv.shape
    return qkv.new_empty(n, heads, width), qkv.new_empty(heads, n, dtype=torch.float32)


@torch.library.custom_op("pretune::block_sparse_attention_backward", mutates_args=(), device_types="cuda")
def block_sparse_attention_backward(
    slope: Tensor, qkv: Tensor, out: Tensor, level: Tensor, tiles: Tensor, order: Tensor, drawn: Tensor,
    scale: float, size: int, short: int, longest: int,
) -> Tensor:  # fmt: skip
    """Return the gradient of `qkv`, (n, 3, heads, d), given the gradient `slope` of the output, (n, heads, d).

    `out` and `level` are the results of `block_sparse_attention`, whose other arguments are the same here.
    """
    return launch_backward(slope, qkv, out, level, tiles, order, drawn, scale, size, short, longest)


@block_sparse_attention_backward.register_fake
def _(slope, qkv, out, level, tiles, order, drawn, scale, size, short, longest):
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, *tables, ctx.scale, ctx.size, ctx.short, ctx.longest = inputs
    ctx.save_for_backward(qkv, *output, *tables)


def _differentiate(ctx, slope, _):
    grad = block_sparse_attention_backward(slope, *ctx.saved_tensors, ctx.scale, ctx.size, ctx.short, ctx.longest)
    return grad, *[None] * 7


block_sparse_attention.register_autograd(_differentiate, setup_context=_keep)
