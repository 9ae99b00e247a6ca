"""The steps that the Triton kernels of sparse attention share: online softmax, and the gradients of tiles.

Logits are in units of log 2 (`scale` contains log₂ e). `own` is the mask of a tile: which query attends to which key.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


@triton.jit
def attention_step(q, k, v, own, scale, peak, total, mixed):
    """Add a tile of keys to the attention of a tile of queries, and return the updated peak, total and output."""
    logits = tl.where(own, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    higher = tl.maximum(peak, tl.max(logits, 1))
    level = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: any level is right
    weights = tl.exp2(logits - level[:, None])
    shrink = tl.exp2(peak - level)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return higher, total, mixed


@triton.jit
def normalize(peak, total, mixed):
    """Return the output and the log-sum-exp of a tile of queries after all its keys.

    A query that saw no key has the output 0 and the log-sum-exp +inf, so that its weights are 0 in the backward pass.
    """
    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    return mixed, tl.where(empty, float("inf"), peak + tl.log2(tl.where(empty, 1.0, total)))


@triton.jit
def query_gradient_step(q, slope, level, center, k, v, own, scale):
    """Return what a tile of keys adds to the gradient of a tile of queries, before scaling."""
    weights = tl.where(own, tl.exp2(tl.dot(q, tl.trans(k)) * scale - level[:, None]), 0.0)
    grad_logits = weights * (tl.dot(slope, tl.trans(v)) - center[:, None])
    return tl.dot(grad_logits.to(k.dtype), k)


@triton.jit
def key_gradient_step(k, v, q, slope, level, center, own, scale):
    """Return what a tile of queries adds to the gradients of a tile of keys (before scaling) and of its values.

    `own` is (keys, queries).
    """
    weights = tl.where(own, tl.exp2(tl.dot(k, tl.trans(q)) * scale - level[None, :]), 0.0)
    grad_logits = weights * (tl.dot(v, tl.trans(slope)) - center[None, :])
    return tl.dot(grad_logits.to(q.dtype), q), tl.dot(weights.to(slope.dtype), slope)


@triton.jit(do_not_specialize=["n"])
def _centers(out_at, slope_at, center_at, n, heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr):
    """Compute the scalar product of the output and its gradient for `tile` tokens of one head (a Triton kernel)."""
    head = tl.program_id(0)
    rows = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = rows < n
    flat = head * width + tl.arange(0, width)[None, :] + rows[:, None].to(tl.int64) * (heads * width)
    out = tl.load(out_at + flat, mask=inside[:, None], other=0.0).to(tl.float32)
    slope = tl.load(slope_at + flat, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(center_at + head * n + rows, tl.sum(out * slope, 1), mask=inside)


def output_centers(out: Tensor, slope: Tensor) -> Tensor:
    """Return the scalar products of attention outputs and their gradients, (n, heads, d) → (heads, n), in fp32."""
    n, heads, width = out.shape
    center = torch.empty(heads, n, dtype=torch.float32, device=out.device)
    _centers[(heads, triton.cdiv(n, 64))](out, slope, center, n, heads=heads, width=width, tile=64, num_warps=4)
    return center
