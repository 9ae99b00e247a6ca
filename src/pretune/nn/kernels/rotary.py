"""A fused kernel for rotary positions on stacked queries, keys and values: queries and keys rotate, values are copied."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32  # per program


@triton.jit
def _rotate(
    qkv_at, cosine_at, sine_at, out_at, n, sign, heads: tl.constexpr, half: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, half)
    inside = token[:, None] < n
    angle = token[:, None] * half + column[None, :]
    cosine = tl.load(cosine_at + angle, mask=inside, other=0.0)
    sine = tl.load(sine_at + angle, mask=inside, other=0.0) * sign
    row = token[:, None].to(tl.int64) * (3 * heads * 2 * half) + column[None, :]
    kind = out_at.dtype.element_ty
    for head in range(2 * heads):
        index = row + head * 2 * half
        first = tl.load(qkv_at + index, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(qkv_at + index + half, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_at + index, (first * cosine - second * sine).to(kind), mask=inside)
        tl.store(out_at + index + half, (second * cosine + first * sine).to(kind), mask=inside)
    for head in range(2 * heads, 3 * heads):
        index = row + head * 2 * half
        tl.store(out_at + index, tl.load(qkv_at + index, mask=inside), mask=inside)
        tl.store(out_at + index + half, tl.load(qkv_at + index + half, mask=inside), mask=inside)


@torch.library.custom_op("pretune::rotate", mutates_args=(), device_types="cuda")
def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor, sign: float) -> Tensor:
    """Rotate the queries and keys in qkv, (n, 3, heads, d), by rotary angles; return a tensor of the same shape.

    `cosine` and `sine` of the angles are (n, d / 2); with `sign` -1, the rotation is undone.
    """
    n, _, heads, width = qkv.shape
    out = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    _rotate[(triton.cdiv(n, TOKENS),)](
        qkv.contiguous(), cosine, sine, out, n, sign, heads=heads, half=width // 2, block=TOKENS, num_warps=4
    )
    return out


@rotate.register_fake
def _(qkv: Tensor, cosine: Tensor, sine: Tensor, sign: float) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    _, cosine, sine, ctx.sign = inputs
    ctx.save_for_backward(cosine, sine)


def _differentiate(ctx, slope):
    return rotate(slope, *ctx.saved_tensors, -ctx.sign), None, None, None


rotate.register_autograd(_differentiate, setup_context=_keep)
