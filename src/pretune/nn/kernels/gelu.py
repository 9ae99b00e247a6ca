"""Fused GELU (Hendrycks and Gimpel, 2016) after a bias, or times a gate, forward and backward.

A compiled GELU is limited by its many instructions, not by memory. Here the error function is a rational approximation
(Abramowitz and Stegun, 7.1.26; error 1.5e-7) with a fast division, one exponential serves both the function and its derivative,
and the backward pass also sums the gradient of the bias.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

# Rows and columns of a tile; measured with perf/gpu_kernels.py --scan.
FORWARD = {"rows": 4, "columns": 512, "num_warps": 4}
BACKWARD = {"rows": 4, "columns": 256, "num_warps": 4}
PROGRAMS = 1056  # of the backward pass with a bias: eight for each of 132 processors


@triton.jit
def _normal(x):
    """Return the standard normal CDF and density at x."""
    exponential = tl.exp2(x * x * -0.7213475204444817)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.23164188825 * tl.abs(x))
    tail = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    tail = t * tail * exponential  # beyond |x|
    return tl.where(x < 0, tail, 1.0 - tail), exponential * 0.3989422804014327


@triton.jit
def _bias_forward(x_at, bias_at, out_at, n, width, rows: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = (row[:, None] < n) & (column[None, :] < width)
    index = row[:, None].to(tl.int64) * width + column[None, :]
    bias = tl.load(bias_at + column, mask=column < width, other=0.0).to(tl.float32)
    x = tl.load(x_at + index, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
    below, _ = _normal(x)
    tl.store(out_at + index, (x * below).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def _bias_backward(
    slope_at, x_at, bias_at, grad_at, parts_at, n, width, rows: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    bias = tl.load(bias_at + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([rows, columns], tl.float32)
    for start in range(tl.program_id(1) * rows, n, tl.num_programs(1) * rows):
        row = start + tl.arange(0, rows)
        inside = (row[:, None] < n) & (column[None, :] < width)
        index = row[:, None].to(tl.int64) * width + column[None, :]
        x = tl.load(x_at + index, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        slope = tl.load(slope_at + index, mask=inside, other=0.0).to(tl.float32)
        below, density = _normal(x)
        grad = slope * (below + x * density)
        total += grad
        tl.store(grad_at + index, grad.to(grad_at.dtype.element_ty), mask=inside)
    tl.store(parts_at + tl.program_id(1) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def _gated_forward(x_at, out_at, n, width, rows: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = (row[:, None] < n) & (column[None, :] < width)
    index = row[:, None].to(tl.int64) * (2 * width) + column[None, :]
    x = tl.load(x_at + index, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_at + index + width, mask=inside, other=0.0).to(tl.float32)
    below, _ = _normal(x)
    out_index = row[:, None].to(tl.int64) * width + column[None, :]
    tl.store(out_at + out_index, (x * below * gate).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def _gated_backward(slope_at, x_at, grad_at, n, width, rows: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = (row[:, None] < n) & (column[None, :] < width)
    index = row[:, None].to(tl.int64) * (2 * width) + column[None, :]
    x = tl.load(x_at + index, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_at + index + width, mask=inside, other=0.0).to(tl.float32)
    slope_index = row[:, None].to(tl.int64) * width + column[None, :]
    slope = tl.load(slope_at + slope_index, mask=inside, other=0.0).to(tl.float32)
    below, density = _normal(x)
    kind = grad_at.dtype.element_ty
    tl.store(grad_at + index, (slope * gate * (below + x * density)).to(kind), mask=inside)
    tl.store(grad_at + index + width, (slope * x * below).to(kind), mask=inside)


@torch.library.custom_op("pretune::bias_gelu", mutates_args=(), device_types="cuda")
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(x + bias): (n, width)."""
    n, width = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(n, FORWARD["rows"]), triton.cdiv(width, FORWARD["columns"]))
    _bias_forward[grid](x.contiguous(), bias, out, n, width, **FORWARD)
    return out


@bias_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pretune::bias_gelu_backward", mutates_args=(), device_types="cuda")
def bias_gelu_backward(slope: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, (n, width), and of the bias, (width,); `slope` is the gradient of the output."""
    n, width = x.shape
    grad = torch.empty_like(x)
    across = triton.cdiv(width, BACKWARD["columns"])
    down = min(max(1, PROGRAMS // across), triton.cdiv(n, BACKWARD["rows"]))
    parts = torch.empty(down, width, dtype=torch.float32, device=x.device)
    _bias_backward[(across, down)](slope.contiguous(), x.contiguous(), bias, grad, parts, n, width, **BACKWARD)
    return grad, parts.sum(0).to(bias.dtype)


@bias_gelu_backward.register_fake
def _(slope: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(bias)


@torch.library.custom_op("pretune::gated_gelu", mutates_args=(), device_types="cuda")
def gated_gelu(x: Tensor) -> Tensor:
    """Return gelu(a) · b for the halves a and b of x: (n, 2 · width) → (n, width)."""
    n, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(n, width)
    grid = (triton.cdiv(n, FORWARD["rows"]), triton.cdiv(width, FORWARD["columns"]))
    _gated_forward[grid](x.contiguous(), out, n, width, **FORWARD)
    return out


@gated_gelu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@torch.library.custom_op("pretune::gated_gelu_backward", mutates_args=(), device_types="cuda")
def gated_gelu_backward(slope: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x, (n, 2 · width); `slope`, (n, width), is the gradient of the output."""
    n, width = x.shape[0], x.shape[1] // 2
    grad = torch.empty_like(x)
    grid = (triton.cdiv(n, BACKWARD["rows"]), triton.cdiv(width, BACKWARD["columns"]))
    _gated_backward[grid](slope.contiguous(), x.contiguous(), grad, n, width, **BACKWARD)
    return grad


@gated_gelu_backward.register_fake
def _(slope: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


bias_gelu.register_autograd(lambda ctx, slope: bias_gelu_backward(slope, *ctx.saved_tensors), setup_context=_keep)
gated_gelu.register_autograd(lambda ctx, slope: gated_gelu_backward(slope, *ctx.saved_tensors), setup_context=_keep)
