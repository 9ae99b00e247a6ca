"""Self-attention within a window and with global tokens (Longformer) over packed sequences: Triton kernels for CUDA.

The keys of a local token are split into two disjoint parts: the tokens of its window that are not global, and all
global tokens of its sequence, which are read by way of a list. The keys of a global token are all tokens of its
sequence. So every pair is computed once, and time is linear in the length. Local and global tokens have queries, keys
and values of their own, (n, 3, heads, d) each. Programs for global tokens read whole sequences; they start first.
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

# Tokens of a tile, of the tiles it reads, and of a tile of global tokens; measured with perf/sparse_attention.py.
FORWARD = {"tile": 64, "other": 64, "few": 16, "num_warps": 4, "num_stages": 3}
BACKWARD = {"tile": 64, "other": 64, "few": 16, "num_warps": 4, "num_stages": 2}
GLOBAL_PROGRAMS = 256  # for the global tokens of all sequences, per head; more sequences have one program each


@triton.jit
def _rows(at, rows, mask, part: tl.constexpr, stride: tl.constexpr, columns):
    """Load the vectors, (rows, width), of tokens with the indices `rows`; `part` is their offset within a token."""
    return tl.load(at + part + columns + rows[:, None].to(tl.int64) * stride, mask=mask[:, None], other=0.0)


@triton.jit
def _global_range(program, each, few, offsets_at, before_at):
    """Return the range of one sequence, and which places of the list of global tokens a program computes."""
    sequence = program // each
    begin = tl.load(offsets_at + sequence)
    end = tl.load(offsets_at + sequence + 1)
    start = tl.load(before_at + begin) + (program % each) * few
    return begin, end, start, tl.load(before_at + end)


@triton.jit
def _local_bounds(rows, n, first_at, last_at, flags_at):
    """Return which tokens are local, and where their sequences start and end; nowhere for tokens that are not local."""
    local = tl.load(flags_at + rows, mask=rows < n, other=1) == 0
    begin = tl.load(first_at + rows, mask=local, other=1 << 30)
    end = tl.load(last_at + rows, mask=local, other=0)
    return local, begin, end


@triton.jit
def _listed_range(begin, end, n, before_at):
    """Return the range of places in the list of global tokens for tokens whose sequences start and end there."""
    return tl.load(before_at + tl.minimum(tl.min(begin, 0), n)), tl.load(before_at + tl.max(end, 0))


@triton.jit
def _global_output(
    head, program, each,
    qkv_at, global_at, out_at, level_at, first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the attention output of the global tokens of a sequence, `few` at a time."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    begin, end, low, high = _global_range(program, each, few, offsets_at, before_at)
    for place in range(low, high, each * few):
        places = place + tl.arange(0, few)
        real = places < high
        rows = tl.load(listed_at + places, mask=real, other=0)
        q = _rows(global_at, rows, real, 0, stride, columns)
        peak = tl.full([few], float("-inf"), tl.float32)
        total = tl.zeros([few], tl.float32)
        mixed = tl.zeros([few, width], tl.float32)
        for start in range(begin, end, other):
            keys = start + tl.arange(0, other)
            k = _rows(global_at, keys, keys < end, inner, stride, columns)
            v = _rows(global_at, keys, keys < end, 2 * inner, stride, columns)
            own = real[:, None] & (keys < end)[None, :]
            peak, total, mixed = attention_step(q, k, v, own, scale, peak, total, mixed)
        mixed, level = normalize(peak, total, mixed)
        there = out_at + columns + rows[:, None].to(tl.int64) * inner
        tl.store(there, mixed.to(out_at.dtype.element_ty), mask=real[:, None])
        tl.store(level_at + head * n + rows, level, mask=real)


@triton.jit
def _local_output(
    head, program, each,
    qkv_at, global_at, out_at, level_at, first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the attention output of `tile` tokens that are not global."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    rows = program * tile + tl.arange(0, tile)
    local, begin, end = _local_bounds(rows, n, first_at, last_at, flags_at)
    first = tl.maximum(begin, rows - left)
    last = tl.minimum(end, rows + right + 1)
    q = _rows(qkv_at, rows, local, 0, stride, columns)
    peak = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    mixed = tl.zeros([tile, width], tl.float32)
    stop = tl.max(last, 0)
    for start in range(tl.min(first, 0), stop, other):
        keys = start + tl.arange(0, other)
        seen = tl.load(flags_at + keys, mask=keys < stop, other=1) == 0
        k = _rows(qkv_at, keys, keys < stop, inner, stride, columns)
        v = _rows(qkv_at, keys, keys < stop, 2 * inner, stride, columns)
        own = (keys[None, :] >= first[:, None]) & (keys[None, :] < last[:, None]) & seen[None, :]
        peak, total, mixed = attention_step(q, k, v, own, scale, peak, total, mixed)
    low, high = _listed_range(begin, end, n, before_at)
    for place in range(low, high, few):
        places = place + tl.arange(0, few)
        keys = tl.load(listed_at + places, mask=places < high, other=0)
        k = _rows(qkv_at, keys, places < high, inner, stride, columns)
        v = _rows(qkv_at, keys, places < high, 2 * inner, stride, columns)
        own = (keys[None, :] >= begin[:, None]) & (keys[None, :] < end[:, None]) & (places < high)[None, :]
        peak, total, mixed = attention_step(q, k, v, own, scale, peak, total, mixed)
    mixed, level = normalize(peak, total, mixed)
    there = out_at + columns + rows[:, None].to(tl.int64) * inner
    tl.store(there, mixed.to(out_at.dtype.element_ty), mask=local[:, None])
    tl.store(level_at + head * n + rows, level, mask=local)


# Integers are not specialized, so that batches with other numbers of tokens or sequences need no compilation.
@triton.jit(do_not_specialize=["n", "left", "right", "each", "programs"])
def _forward(
    qkv_at, global_at, out_at, level_at, first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, left, right, each, programs,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the attention output of one head (a Triton kernel): first global tokens, then tiles of other tokens.

    `programs` programs compute global tokens, `each` per sequence.
    """
    head = tl.program_id(0)
    program = tl.program_id(1)
    if program < programs:
        _global_output(
            head, program, each,
            qkv_at, global_at, out_at, level_at, first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip
    else:
        _local_output(
            head, program - programs, each,
            qkv_at, global_at, out_at, level_at, first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip


@triton.jit
def _global_key_gradients(
    head, program, each,
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of global keys and their values, which all local tokens of their sequence read."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    kind = grad_at.dtype.element_ty
    begin, end, low, high = _global_range(program, each, few, offsets_at, before_at)
    for place in range(low, high, each * few):
        places = place + tl.arange(0, few)
        real = places < high
        rows = tl.load(listed_at + places, mask=real, other=0)
        k = _rows(qkv_at, rows, real, inner, stride, columns)
        v = _rows(qkv_at, rows, real, 2 * inner, stride, columns)
        grad_k = tl.zeros([few, width], tl.float32)
        grad_v = tl.zeros([few, width], tl.float32)
        for start in range(begin, end, other):
            queries = start + tl.arange(0, other)
            seen = tl.load(flags_at + queries, mask=queries < end, other=1) == 0
            q = _rows(qkv_at, queries, seen, 0, stride, columns)
            slope = _rows(slope_at, queries, seen, 0, inner, columns)
            level = tl.load(level_at + head * n + queries, mask=seen, other=float("inf"))
            center = tl.load(center_at + head * n + queries, mask=seen, other=0.0)
            own = real[:, None] & seen[None, :]
            more_k, more_v = key_gradient_step(k, v, q, slope, level, center, own, scale)
            grad_k += more_k
            grad_v += more_v
        there = grad_at + columns + rows[:, None].to(tl.int64) * stride
        tl.store(there + inner, (grad_k * plain_scale).to(kind), mask=real[:, None])
        tl.store(there + 2 * inner, grad_v.to(kind), mask=real[:, None])


@triton.jit
def _global_query_gradients(
    head, program, each,
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries of global tokens."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    kind = grad_at.dtype.element_ty
    begin, end, low, high = _global_range(program, each, few, offsets_at, before_at)
    for place in range(low, high, each * few):
        places = place + tl.arange(0, few)
        real = places < high
        rows = tl.load(listed_at + places, mask=real, other=0)
        q = _rows(global_at, rows, real, 0, stride, columns)
        slope = _rows(slope_at, rows, real, 0, inner, columns)
        level = tl.load(level_at + head * n + rows, mask=real, other=float("inf"))
        center = tl.load(center_at + head * n + rows, mask=real, other=0.0)
        grad_q = tl.zeros([few, width], tl.float32)
        for start in range(begin, end, other):
            keys = start + tl.arange(0, other)
            k = _rows(global_at, keys, keys < end, inner, stride, columns)
            v = _rows(global_at, keys, keys < end, 2 * inner, stride, columns)
            own = real[:, None] & (keys < end)[None, :]
            grad_q += query_gradient_step(q, slope, level, center, k, v, own, scale)
        there = global_grad_at + columns + rows[:, None].to(tl.int64) * stride
        tl.store(there, (grad_q * plain_scale).to(kind), mask=real[:, None])


@triton.jit
def _local_key_gradients(
    head, program, each,
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `tile` keys and their values, which local tokens nearby read, unless they are global."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    kind = grad_at.dtype.element_ty
    rows = program * tile + tl.arange(0, tile)
    local, begin, end = _local_bounds(rows, n, first_at, last_at, flags_at)
    first = tl.maximum(begin, rows - right)
    last = tl.minimum(end, rows + left + 1)
    k = _rows(qkv_at, rows, local, inner, stride, columns)
    v = _rows(qkv_at, rows, local, 2 * inner, stride, columns)
    grad_k = tl.zeros([tile, width], tl.float32)
    grad_v = tl.zeros([tile, width], tl.float32)
    stop = tl.max(last, 0)
    for start in range(tl.min(first, 0), stop, other):
        queries = start + tl.arange(0, other)
        seen = tl.load(flags_at + queries, mask=queries < stop, other=1) == 0
        q = _rows(qkv_at, queries, seen, 0, stride, columns)
        slope = _rows(slope_at, queries, seen, 0, inner, columns)
        level = tl.load(level_at + head * n + queries, mask=seen, other=float("inf"))
        center = tl.load(center_at + head * n + queries, mask=seen, other=0.0)
        own = (queries[None, :] >= first[:, None]) & (queries[None, :] < last[:, None]) & seen[None, :]
        more_k, more_v = key_gradient_step(k, v, q, slope, level, center, own, scale)
        grad_k += more_k
        grad_v += more_v
    there = grad_at + columns + rows[:, None].to(tl.int64) * stride
    tl.store(there + inner, (grad_k * plain_scale).to(kind), mask=local[:, None])
    tl.store(there + 2 * inner, grad_v.to(kind), mask=local[:, None])


@triton.jit
def _read_key_gradients(
    head, program, each,
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of `tile` keys and their values, which the global tokens of their sequence read."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    kind = grad_at.dtype.element_ty
    rows = program * tile + tl.arange(0, tile)
    inside = rows < n
    begin = tl.load(first_at + rows, mask=inside, other=1 << 30)
    end = tl.load(last_at + rows, mask=inside, other=0)
    k = _rows(global_at, rows, inside, inner, stride, columns)
    v = _rows(global_at, rows, inside, 2 * inner, stride, columns)
    grad_k = tl.zeros([tile, width], tl.float32)
    grad_v = tl.zeros([tile, width], tl.float32)
    low, high = _listed_range(begin, end, n, before_at)
    for place in range(low, high, few):
        places = place + tl.arange(0, few)
        real = places < high
        queries = tl.load(listed_at + places, mask=real, other=0)
        q = _rows(global_at, queries, real, 0, stride, columns)
        slope = _rows(slope_at, queries, real, 0, inner, columns)
        level = tl.load(level_at + head * n + queries, mask=real, other=float("inf"))
        center = tl.load(center_at + head * n + queries, mask=real, other=0.0)
        own = (queries[None, :] >= begin[:, None]) & (queries[None, :] < end[:, None]) & real[None, :]
        more_k, more_v = key_gradient_step(k, v, q, slope, level, center, own, scale)
        grad_k += more_k
        grad_v += more_v
    there = global_grad_at + columns + rows[:, None].to(tl.int64) * stride
    tl.store(there + inner, (grad_k * plain_scale).to(kind), mask=inside[:, None])
    tl.store(there + 2 * inner, grad_v.to(kind), mask=inside[:, None])


@triton.jit
def _local_query_gradients(
    head, program, each,
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries of `tile` tokens that are not global."""
    columns = head * width + tl.arange(0, width)[None, :]
    stride: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    kind = grad_at.dtype.element_ty
    rows = program * tile + tl.arange(0, tile)
    local, begin, end = _local_bounds(rows, n, first_at, last_at, flags_at)
    first = tl.maximum(begin, rows - left)
    last = tl.minimum(end, rows + right + 1)
    q = _rows(qkv_at, rows, local, 0, stride, columns)
    slope = _rows(slope_at, rows, local, 0, inner, columns)
    level = tl.load(level_at + head * n + rows, mask=local, other=float("inf"))
    center = tl.load(center_at + head * n + rows, mask=local, other=0.0)
    grad_q = tl.zeros([tile, width], tl.float32)
    stop = tl.max(last, 0)
    for start in range(tl.min(first, 0), stop, other):
        keys = start + tl.arange(0, other)
        seen = tl.load(flags_at + keys, mask=keys < stop, other=1) == 0
        k = _rows(qkv_at, keys, keys < stop, inner, stride, columns)
        v = _rows(qkv_at, keys, keys < stop, 2 * inner, stride, columns)
        own = (keys[None, :] >= first[:, None]) & (keys[None, :] < last[:, None]) & seen[None, :]
        grad_q += query_gradient_step(q, slope, level, center, k, v, own, scale)
    low, high = _listed_range(begin, end, n, before_at)
    for place in range(low, high, few):
        places = place + tl.arange(0, few)
        keys = tl.load(listed_at + places, mask=places < high, other=0)
        k = _rows(qkv_at, keys, places < high, inner, stride, columns)
        v = _rows(qkv_at, keys, places < high, 2 * inner, stride, columns)
        own = (keys[None, :] >= begin[:, None]) & (keys[None, :] < end[:, None]) & (places < high)[None, :]
        grad_q += query_gradient_step(q, slope, level, center, k, v, own, scale)
    there = columns + rows[:, None].to(tl.int64) * stride
    tl.store(grad_at + there, (grad_q * plain_scale).to(kind), mask=(rows < n)[:, None])  # 0 for global tokens
    tl.store(global_grad_at + there, tl.zeros([tile, width], kind), mask=local[:, None])


@triton.jit(do_not_specialize=["n", "left", "right", "each", "programs", "tiles"])
def _backward(
    qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
    first_at, last_at, flags_at, before_at, listed_at, offsets_at,
    n, scale, plain_scale, left, right, each, programs, tiles,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, other: tl.constexpr, few: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one head (a Triton kernel).

    `programs` programs compute global keys, as many global queries, then `tiles` programs tiles of keys, and as many
    tiles of queries.
    """
    head = tl.program_id(0)
    program = tl.program_id(1)
    if program < programs:
        _global_key_gradients(
            head, program, each,
            qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
            first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, plain_scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip
    elif program < 2 * programs:
        _global_query_gradients(
            head, program - programs, each,
            qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
            first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, plain_scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip
    elif program < 2 * programs + tiles:
        _local_key_gradients(
            head, program - 2 * programs, each,
            qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
            first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, plain_scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip
        _read_key_gradients(
            head, program - 2 * programs, each,
            qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
            first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, plain_scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip
    else:
        _local_query_gradients(
            head, program - 2 * programs - tiles, each,
            qkv_at, global_at, slope_at, level_at, center_at, grad_at, global_grad_at,
            first_at, last_at, flags_at, before_at, listed_at, offsets_at,
            n, scale, plain_scale, left, right, heads, width, tile, other, few,
        )  # fmt: skip


def _programs(sequences: int, n: int, few: int) -> tuple[int, int]:
    """Return the number of programs for the global tokens of each sequence, and of all `sequences` together."""
    each = max(1, min(GLOBAL_PROGRAMS // sequences, triton.cdiv(n, few)))
    return each, each * sequences


def _constants(heads: int, width: int, options: dict[str, int]) -> dict[str, int]:
    """Return the compile-time constants of a kernel; wide heads need the registers of more warps."""
    return {**options, "heads": heads, "width": width, "num_warps": max(options["num_warps"], 8 if width > 64 else 4)}


def launch_forward(
    qkv: Tensor, global_qkv: Tensor, tokens: list[Tensor], scale: float, left: int, right: int
) -> tuple[Tensor, Tensor]:
    """Compute `global_attention`, without registering it with autograd; `tokens` are its arguments 3 to 8."""
    n, _, heads, width = qkv.shape
    out = torch.empty(n, heads, width, dtype=qkv.dtype, device=qkv.device)
    level = torch.empty(heads, n, dtype=torch.float32, device=qkv.device)
    each, programs = _programs(tokens[-1].shape[0] - 1, n, FORWARD["few"])
    grid = (heads, programs + triton.cdiv(n, FORWARD["tile"]))
    _forward[grid](
        qkv.contiguous(), global_qkv.contiguous(), out, level, *tokens, n, scale * LOG2_E, left, right, each, programs,
        **_constants(heads, width, FORWARD),
    )  # fmt: skip
    return out, level


def launch_backward(
    slope: Tensor, qkv: Tensor, global_qkv: Tensor, out: Tensor, level: Tensor, tokens: list[Tensor],
    scale: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute `global_attention_backward`; `tokens` are its arguments 6 to 11."""
    n, _, heads, width = qkv.shape
    slope = slope.contiguous()
    grad, global_grad = (torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device) for _ in range(2))
    each, programs = _programs(tokens[-1].shape[0] - 1, n, BACKWARD["few"])
    tiles = triton.cdiv(n, BACKWARD["tile"])
    _backward[(heads, 2 * programs + 2 * tiles)](
        qkv.contiguous(), global_qkv.contiguous(), slope, level, output_centers(out, slope), grad, global_grad, *tokens,
        n, scale * LOG2_E, scale, left, right, each, programs, tiles, **_constants(heads, width, BACKWARD),
    )  # fmt: skip
    return grad, global_grad


@torch.library.custom_op("pretune::global_attention", mutates_args=(), device_types="cuda")
def global_attention(
    qkv: Tensor, global_qkv: Tensor,
    first: Tensor, last: Tensor, flags: Tensor, before: Tensor, listed: Tensor, offsets: Tensor,
    scale: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute self-attention of n packed tokens, (n, 3, heads, d), within windows and with global tokens.

    Local tokens attend to at most `left` tokens before and `right` tokens after them (`UNLIMITED`: no limit), and to
    the global tokens of their sequence, with queries, keys and values from `qkv`; global tokens attend to all tokens of
    their sequence, with those from `global_qkv`.

    The sequence of token i begins at `first[i]` and ends before `last[i]`, `flags[i]` is 1 if it is global, and
    `before[i]` is the number of global tokens before it, (n + 1,). `listed` are the indices of the global tokens,
    followed by anything, (n,), and `offsets` those of the sequences. All are int32, except for `flags`, int8.

    Return the output, (n, heads, d), and, for the backward pass, the log-sum-exp of the logits, (heads, n).
    """
    return launch_forward(qkv, global_qkv, [first, last, flags, before, listed, offsets], scale, left, right)


@global_attention.register_fake
def _(qkv, global_qkv, first, last, flags, before, listed, offsets, scale, left, right):
    n, _, heads, width = qkv.shape
    return qkv.new_empty(n, heads, width), qkv.new_empty(heads, n, dtype=torch.float32)


@torch.library.custom_op("pretune::global_attention_backward", mutates_args=(), device_types="cuda")
def global_attention_backward(
    slope: Tensor, qkv: Tensor, global_qkv: Tensor, out: Tensor, level: Tensor,
    first: Tensor, last: Tensor, flags: Tensor, before: Tensor, listed: Tensor, offsets: Tensor,
    scale: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of `qkv` and `global_qkv`, given the gradient `slope` of the output, (n, heads, d).

    `out` and `level` are the results of `global_attention`, whose other arguments are the same here.
    """
    tokens = [first, last, flags, before, listed, offsets]
    return launch_backward(slope, qkv, global_qkv, out, level, tokens, scale, left, right)


@global_attention_backward.register_fake
def _(slope, qkv, global_qkv, out, level, first, last, flags, before, listed, offsets, scale, left, right):
    return qkv.new_empty(qkv.shape), qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, global_qkv, *tokens, ctx.scale, ctx.left, ctx.right = inputs
    ctx.save_for_backward(qkv, global_qkv, *output, *tokens)


def _differentiate(ctx, slope, _):
    grads = global_attention_backward(slope, *ctx.saved_tensors, ctx.scale, ctx.left, ctx.right)
    return *grads, *[None] * 9


global_attention.register_autograd(_differentiate, setup_context=_keep)
