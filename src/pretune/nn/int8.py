"""Linear maps whose matrices are whole numbers, multiplied as such by torch's own kernels.

`dynamic`: inputs become 8 bits too, by their range, and integers are multiplied. `weights`: inputs stay bf16, and only the matrix
is read as 8 bits, which is what counts where one token follows the other; `int4`: as 4 bits (nn/int4.py). Kernels differ from machine to machine and may be
absent from a torch: this module is the only one that knows of them.
"""

from __future__ import annotations

import platform
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.errors import PretuneError
from pretune.nn.int4 import Int4Linear, check_int4, fits
from pretune.nn.linear import Linear
from pretune.storage import to_int8

KINDS = ("dynamic", "weights", "int4")
# The kernels of each kind of machine, the best first.
X86 = ("x86", "fbgemm", "onednn")
ENGINES = {"x86_64": X86, "AMD64": X86, "other": ("onednn", "qnnpack")}


def choose_engine() -> str:
    """The kernels for integers that this machine and this torch have."""
    known = torch.backends.quantized.supported_engines
    wanted = ENGINES.get(platform.machine(), ENGINES["other"])
    found = next((engine for engine in wanted if engine in known), None)
    if found is None or not hasattr(torch.ops.quantized, "linear_dynamic"):
        raise PretuneError(
            "this machine's torch has no kernels for 8-bit integers; use `pretune quantize --engine onnx` instead"
        )
    return found


def check_kind(kind: str) -> None:
    """Refuse a kind that cannot run here."""
    if kind not in KINDS:
        raise PretuneError(f"linear maps of 8 bits are {' or '.join(KINDS)}, not {kind!r}")
    if kind == "dynamic":
        choose_engine()
    elif kind == "int4":
        check_int4()
    elif not hasattr(torch, "_weight_int8pack_mm"):
        raise PretuneError("this torch has no kernel for 8-bit matrices; use `pretune quantize --engine onnx` instead")


class Int8Linear(nn.Module):
    """A linear map of 8 bits: row i of the matrix is `weight[i] · scale[i]`."""

    weight: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool, stacked: int, kind: str) -> None:
        super().__init__()
        check_kind(kind)
        self.in_features, self.out_features, self.stacked, self.kind = inputs, outputs, stacked, kind
        self.register_buffer("weight", torch.zeros(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs), requires_grad=False) if bias else None
        self.ready: Any = None  # the matrix as the kernels want it

    @classmethod
    def of(cls, linear: Linear, kind: str) -> Int8Linear:
        """The nearest one to a linear map."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, linear.stacked, kind)
        if not linear.weight.is_meta:
            made.weight, made.scale = to_int8(linear.weight.detach().float())
        if made.bias is not None and linear.bias is not None:
            made.bias.data = linear.bias.detach().clone()
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) → (n, outputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if x.is_cuda:  # where these kernels are not
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype)[:, None], bias)
        if self.kind == "dynamic":
            if self.ready is None:
                self.ready = packed_for_kernels(self.weight, self.scale, self.bias)
            return torch.ops.quantized.linear_dynamic(x.float(), self.ready).to(x.dtype)
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        out = torch._weight_int8pack_mm(rows, self.weight, self.scale.bfloat16()).to(x.dtype)
        return (out if bias is None else out + bias).view(*x.shape[:-1], -1)


def packed_for_kernels(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """A matrix in the order that this machine's kernels read."""
    torch.backends.quantized.engine = choose_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such tensors will not be there forever
        zeros = torch.zeros(len(scale), dtype=torch.long)
        quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach())


def replace_linears(module: nn.Module, kind: str) -> None:
    """Make all linear maps inside a module ones of 8 bits, or of 4 where groups go into them."""
    check_kind(kind)
    small = kind == "int4"
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                made = Int4Linear.of(child) if small and fits(child) else None
                setattr(parent, name, made or Int8Linear.of(child, "weights" if small else kind))
