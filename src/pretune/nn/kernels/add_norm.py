"""A fused kernel for norm(x + dropout(y)) on CUDA, forward and backward.

A compiler splits the backward pass into three kernels, which read the same rows repeatedly, and keeps the dropout mask
in memory. Here one pass reads each row once: it recomputes the mask from its seed, and computes the gradient of the row
and its contribution to the gradients of the norm's parameters.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pretune.nn.dropout import dropout_threshold, seed_offset
from pretune.nn.kernels.dropout_mask import is_kept

# Elements that a program holds at once, in whole rows, by row width; measured with perf/gpu_kernels.py --scan.
FORWARD = {256: {"held": 4096, "num_warps": 4}, 1024: {"held": 2048, "num_warps": 4}}
BACKWARD = {512: {"held": 4096, "num_warps": 2}, 1024: {"held": 4096, "num_warps": 4}}
PROGRAMS = 1056  # of the backward pass: eight for each of 132 processors


@triton.jit
def _forward(
    x_at, y_at, weight_at, bias_at, seed_at, salt, out_at, sum_at, mean_at, scale_at, n, eps, least, grow,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, block)
    inside = (row[:, None] < n) & (column[None, :] < width)
    index = row[:, None] * width + column[None, :]
    x = tl.load(x_at + index, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_at + index, mask=inside, other=0.0).to(tl.float32)
    kept = is_kept(index, tl.load(seed_at) + salt, least)
    total = tl.where(inside, x + tl.where(kept, y * grow, 0.0), 0.0)
    total = total.to(sum_at.dtype.element_ty).to(tl.float32)  # as the backward pass will read it
    mean = tl.sum(total, 1) / width
    centered = tl.where(inside, total - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    weight = tl.load(weight_at + column, mask=column < width, other=0.0).to(tl.float32)
    bias = tl.load(bias_at + column, mask=column < width, other=0.0).to(tl.float32)
    out = centered * scale[:, None] * weight[None, :] + bias[None, :]
    tl.store(sum_at + index, total.to(sum_at.dtype.element_ty), mask=inside)
    tl.store(out_at + index, out.to(out_at.dtype.element_ty), mask=inside)
    tl.store(mean_at + row, mean, mask=row < n)
    tl.store(scale_at + row, scale, mask=row < n)


@triton.jit
def _backward(
    slope_at, sum_at, mean_at, scale_at, weight_at, seed_at, salt, grad_x_at, grad_y_at, parts_at, n, least, grow,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, block)
    weight = tl.load(weight_at + column, mask=column < width, other=0.0).to(tl.float32)
    seed = tl.load(seed_at) + salt
    grad_weight = tl.zeros([block], tl.float32)
    grad_bias = tl.zeros([block], tl.float32)
    for start in range(tl.program_id(0) * rows, n, tl.num_programs(0) * rows):
        row = start + tl.arange(0, rows)
        inside = (row[:, None] < n) & (column[None, :] < width)
        index = row[:, None] * width + column[None, :]
        slope = tl.load(slope_at + index, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(sum_at + index, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_at + row, mask=row < n, other=0.0)
        scale = tl.load(scale_at + row, mask=row < n, other=0.0)
        normed = tl.where(inside, (total - mean[:, None]) * scale[:, None], 0.0)
        grad_weight += tl.sum(slope * normed, 0)
        grad_bias += tl.sum(slope, 0)
        scaled = slope * weight[None, :]
        along, level = tl.sum(scaled * normed, 1) / width, tl.sum(scaled, 1) / width
        grad = (scaled - normed * along[:, None] - level[:, None]) * scale[:, None]
        kept = is_kept(index, seed, least)
        tl.store(grad_x_at + index, grad.to(grad_x_at.dtype.element_ty), mask=inside)
        tl.store(grad_y_at + index, tl.where(kept, grad * grow, 0.0).to(grad_y_at.dtype.element_ty), mask=inside)
    part = parts_at + tl.program_id(0) * 2 * width + column
    tl.store(part, grad_weight, mask=column < width)
    tl.store(part + width, grad_bias, mask=column < width)


def launch_settings(width: int, choices: dict[int, dict[str, int]]) -> dict[str, int]:
    """Return the launch settings of a Triton kernel for rows of `width` elements.

    `choices` maps widths, in increasing order, to the settings for rows of at most that width.
    """
    return next((choice for most, choice in choices.items() if width <= most), choices[max(choices)])


def _sizes(width: int, choices: dict[int, dict[str, int]]) -> dict[str, int]:
    block, choice = triton.next_power_of_2(width), launch_settings(width, choices)
    return {"width": width, "block": block, "rows": max(1, choice["held"] // block), "num_warps": choice["num_warps"]}


@torch.library.custom_op("pretune::add_norm", mutates_args=(), device_types="cuda")
def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, salt: int, rate: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return norm(x + dropout(y)), (n, width), and x + dropout(y), row means and row scales for the backward pass.

    `salt` identifies the dropout layer, and `eps` is added to the variance.
    """
    n, width = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    mean, scale = (torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2))
    sizes = _sizes(width, FORWARD)
    _forward[(triton.cdiv(n, sizes["rows"]),)](
        x.contiguous(), y.contiguous(), weight, bias, seed, seed_offset(salt), out, total, mean, scale, n, eps,
        dropout_threshold(rate), 1.0 / (1.0 - rate), **sizes,
    )  # fmt: skip
    return out, total, mean, scale


@add_norm.register_fake
def _(x, y, weight, bias, seed, salt, rate, eps):
    rows = x.new_empty(x.shape[0], dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x), rows, torch.empty_like(rows)


@torch.library.custom_op("pretune::add_norm_backward", mutates_args=(), device_types="cuda")
def add_norm_backward(
    slope: Tensor, total: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, seed: Tensor, salt: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of y, (n, width) each, and of weight and bias in one tensor, (2, width).

    `slope` is the gradient of the output; `total`, `mean` and `scale` are the further results of `add_norm`.
    """
    n, width = total.shape
    grad_x, grad_y = torch.empty_like(total), torch.empty_like(total)
    parts = torch.empty(PROGRAMS, 2, width, dtype=torch.float32, device=total.device)
    _backward[(PROGRAMS,)](
        slope.contiguous(), total, mean, scale, weight, seed, seed_offset(salt), grad_x, grad_y, parts, n,
        dropout_threshold(rate), 1.0 / (1.0 - rate), **_sizes(width, BACKWARD),
    )  # fmt: skip
    return grad_x, grad_y, parts.sum(0)


@add_norm_backward.register_fake
def _(slope, total, mean, scale, weight, seed, salt, rate):
    return torch.empty_like(total), torch.empty_like(total), mean.new_empty(2, total.shape[1])


def _keep(ctx, inputs, output) -> None:
    _, _, weight, _, seed, ctx.salt, ctx.rate, _ = inputs
    _, total, mean, scale = output
    # The training loop writes the next seed into the same tensor, before or after this backward pass.
    ctx.save_for_backward(total, mean, scale, weight, seed)


def _differentiate(ctx, slope, *_):
    grad_x, grad_y, sums = add_norm_backward(slope, *ctx.saved_tensors, ctx.salt, ctx.rate)
    kind = ctx.saved_tensors[3].dtype
    return grad_x, grad_y, sums[0].to(kind), sums[1].to(kind), *[None] * 4


add_norm.register_autograd(_differentiate, setup_context=_keep)
