"""Linear layers with bf16 activations and int4 weights, of which two are stored in a byte.

A weight is w = factor · (integer - 8) + offset, with one factor and one offset for every 32 weights of a row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.linear import Linear
from pretune.runtime.errors import PretuneError, if_option

GROUP = 32
ROW_MULTIPLE = 16  # the kernels need a multiple of this many rows


def check_int4() -> None:
    """Raise an error if this version of torch has no int4 kernel."""
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        raise PretuneError(
            f"this version of torch has no kernel for int4 weights{if_option('bits', '; leave --bits out')}"
        )


def fits_int4(linear: Linear) -> bool:
    """Return whether the shape of a linear layer allows int4 weights."""
    return linear.in_features % GROUP == 0 and linear.out_features % ROW_MULTIPLE == 0


def to_int4(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix to int4: return bytes, (rows, columns / 2), and factors with offsets, (rows, groups, 2).

    A group is 32 neighboring columns of a row.

    >>> [tuple(x.shape) for x in to_int4(torch.randn(16, 64))]
    [(16, 32), (16, 2, 2)]
    """
    groups = rows.float().view(len(rows), -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = torch.stack([((high - low) / 15).clamp(min=1e-12), low], -1)
    scale[..., 1] += 8 * scale[..., 0]
    scale = scale.bfloat16()  # rounded first, so that weights are quantized by the rounded factors
    factor, offset = scale.float()[..., None].unbind(2)
    integers = ((groups - offset) / factor + 8).round().clamp(0, 15).to(torch.uint8).view(len(rows), -1)
    return integers[:, ::2] | (integers[:, 1::2] << 4), scale


def unpack_int4(weight: Tensor) -> Tensor:
    """Return the integers from 0 to 15, (rows, columns), that are packed in bytes (rows, columns / 2)."""
    return torch.stack([weight & 15, weight >> 4], -1).flatten(1)


class QuantizedLinear(nn.Module):
    """The base class of linear layers with quantized weights, built from a linear layer of the same shape."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: Linear, weight: Tensor, scale: Tensor) -> None:
        """Build a quantized copy of a linear layer from its quantized weights `weight` and their factors `scale`."""
        super().__init__()
        self.in_features, self.out_features, self.stacked = linear.in_features, linear.out_features, linear.stacked
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.packed_weight: Any = None  # the weights in the order that the kernels require


class Int4Linear(QuantizedLinear):
    """A linear layer with int4 weights."""

    @classmethod
    def from_linear(cls, linear: Linear) -> Int4Linear:
        """Quantize a linear layer to int4 weights."""
        check_int4()
        return cls(linear, *to_int4(linear.weight.detach()))

    def dequantize(self) -> Tensor:
        """Return the dequantized weights, (outputs, inputs)."""
        factor, offset = self.scale.float()[..., None].unbind(2)
        groups = unpack_int4(self.weight).float().view(self.out_features, -1, GROUP)
        return (factor * (groups - 8) + offset).view(self.out_features, -1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply a linear layer with int4 weights: (…, inputs) → (…, outputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if x.is_cuda:  # the kernel is for the CPU only
            return F.linear(x, self.dequantize().to(x.dtype), bias)
        if self.packed_weight is None:
            matrix = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack_int4(self.weight).int(), 1)
            self.packed_weight = matrix, self.scale.transpose(0, 1).contiguous()
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed_weight[0], GROUP, self.packed_weight[1]).to(
            x.dtype
        )
        return (out if bias is None else out + bias).view(*x.shape[:-1], -1)
