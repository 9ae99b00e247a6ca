"""Linear layers with int8 weights, using torch's kernels.

`dynamic`: activations are quantized to 8 bits by their range in each call, and integers are multiplied. `weight-only`:
activations stay bf16 and only the weights are int8, which pays off in token-by-token generation; `int4`: weights have 4
bits, and activations stay bf16. Kernels differ between machines and may be missing from a torch build; only this module
deals with that.

Why weights have 7 bits where integers are multiplied: x86 processors multiply unsigned activations (0 to 255) by signed
weights (-128 to 127). Without VNNI (AVX2 and AVX-512 up to Skylake), two products are added in 16 bits, and the sum
saturates: 2 · 255 · 127 = 64,770 exceeds 32,767. This holds for fbgemm and oneDNN, which torch uses, and for ONNX
Runtime; all three recommend halving the range of one factor (`reduce_range`; oneDNN: "Nuances of int8 computations").
Here it is always the range of the weights: with weights of at most 64, 2 · 255 · 64 = 32,640 fits, so that a model
makes the same predictions everywhere.
"""

from __future__ import annotations

import platform
import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.linear import Linear
from pretune.nn.quantized.int4 import Int4Linear, QuantizedLinear, check_int4, fits_int4
from pretune.runtime.compressed_tensors import quantize_rows
from pretune.runtime.errors import PretuneError, suggest

QUANTIZATION_KINDS = ("dynamic", "weight-only", "int4")
LARGEST_7_BIT = 64  # largest weight multiplied by 8-bit activations; the sum of two products then fits into 16 bits
# torch's engines by kind of machine, fastest first. On ARM, qnnpack took 0.09 to 0.6 of oneDNN's time
# (Neoverse N1, torch 2.13, one thread, 1 to 512 rows).
X86 = ("x86", "fbgemm", "onednn", "qnnpack")
ENGINES = {"x86_64": X86, "AMD64": X86, "other": ("qnnpack", "onednn")}


def choose_engine() -> str:
    """Return the name of torch's fastest int8 engine on this machine that multiplies integers exactly."""
    known = torch.backends.quantized.supported_engines
    wanted = ENGINES.get(platform.machine(), ENGINES["other"])
    found = next((engine for engine in wanted if engine in known and multiplies_exactly(engine)), None)
    if found is None:
        raise PretuneError(
            "torch has no int8 kernels that give exact results on this machine; use `pretune quantize --backend onnx` instead"
        )
    return found


@cache
def multiplies_exactly(engine: str) -> bool:
    """Return whether an int8 engine of torch multiplies even the largest integers exactly, without saturation."""
    with torch.device("cpu"):  # also while a model is built on the meta device
        weight = torch.full((32, 64), LARGEST_7_BIT, dtype=torch.int8)
        weight[1::2] *= -1
        rows = torch.ones(40, 64)
        rows[:, ::8] = 0.0  # so that activations range from 0 to 1, and 1 becomes 255
        expected = rows @ weight.float().T
        try:
            packed = pack_weight(weight, torch.ones(32), None, engine)
            return all(torch.allclose(linear_dynamic(rows[:n], packed), expected[:n], rtol=1e-4) for n in (1, 40))
        except (RuntimeError, AttributeError):  # the engine is listed, but not part of this build of torch
            return False


def check_kind(kind: str) -> None:
    """Raise an error if a kind of quantized weights is unknown or not supported on this machine."""
    if kind not in QUANTIZATION_KINDS:
        raise PretuneError(f"unknown kind of quantized weights {kind!r}; {suggest(kind, QUANTIZATION_KINDS)}")
    if kind == "dynamic":
        choose_engine()
    elif kind == "int4":
        check_int4()
    elif not hasattr(torch, "_weight_int8pack_mm"):
        raise PretuneError(
            "this version of torch has no kernel for int8 weights; use `pretune quantize --backend onnx` instead"
        )


class Int8Linear(QuantizedLinear):
    """A linear layer with int8 weights: row i of the real weight matrix is `weight[i] · scale[i]`."""

    kind: str

    @classmethod
    def from_linear(cls, linear: Linear, kind: str) -> Int8Linear:
        """Quantize a linear layer to int8; `kind` is `dynamic` (activations become int8 as well) or `weight-only`."""
        check_kind(kind)
        largest = LARGEST_7_BIT if kind == "dynamic" else 127
        quantized = cls(linear, *quantize_rows(linear.weight.detach().float(), largest))
        quantized.kind = kind
        return quantized

    def forward(self, x: Tensor) -> Tensor:
        """Apply a linear layer with int8 weights: (n, inputs) → (n, outputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if x.is_cuda:  # the kernels are for the CPU only
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype)[:, None], bias)
        if self.kind == "dynamic":
            if self.packed_weight is None:
                if int(self.weight.int().abs().max()) > LARGEST_7_BIT:
                    raise PretuneError(
                        "these int8 weights exceed 7 bits, which gives wrong results on some processors; quantize the model again"
                    )
                self.packed_weight = pack_weight(self.weight, self.scale, self.bias, choose_engine())
            return linear_dynamic(x.float(), self.packed_weight).to(x.dtype)
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        out = torch._weight_int8pack_mm(rows, self.weight, self.scale.bfloat16()).to(x.dtype)
        return (out if bias is None else out + bias).view(*x.shape[:-1], -1)


def linear_dynamic(x: Tensor, packed: Any) -> Tensor:
    """Multiply x, quantized to 8 bits by its own range, with weights from `pack_weight`: (n, inputs) → (n, outputs)."""
    return torch.ops.quantized.linear_dynamic(x, packed)


def pack_weight(weight: Tensor, scale: Tensor, bias: Tensor | None, engine: str) -> Any:
    """Return int8 weights, their factors per row (`scale`) and a bias in the memory layout of an int8 `engine`."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine  # only while weights are packed: packed weights remember their engine
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation of quantized tensors
            zeros = torch.zeros(len(scale), dtype=torch.long)
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach())
    finally:
        torch.backends.quantized.engine = before


def replace_linears(module: nn.Module, kind: str) -> None:
    """Replace all linear layers of a module with quantized ones; `kind` is `dynamic`, `weight-only` or `int4`.

    With `int4`, layers whose shape does not fit get int8 weights.
    """
    check_kind(kind)
    small = kind == "int4"
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                made = Int4Linear.from_linear(child) if small and fits_int4(child) else None
                setattr(parent, name, made or Int8Linear.from_linear(child, "weight-only" if small else kind))
