"""Linear layers and norms that compute in the dtype of their input.

Parameters stay in fp32; activations are fp32 on a CPU and bf16 on an accelerator. Casting a weight where it is used is
a small kernel that a compiler fuses, and there is no hidden autocast state.
"""

from __future__ import annotations

import platform
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.initialization import InitializationScheme
from pretune.nn.operation_counts import OperationSizes
from pretune.nn.saved_activations import SavedActivations

PACKED_ROWS = 16  # number of rows for which the layout of packed matrices is chosen
# The largest number of rows that are multiplied with packed matrices. oneDNN compiles a product for each number of rows, and keeps its
# code, 0.6 MB, as long as the process lives, so that a server with batches of every size would grow by gigabytes. Many rows gain
# little or nothing from packing.
MOST_PACKED_ROWS = 32


def pack_matrix(weight: Tensor) -> Tensor:
    """Return a weight matrix in the memory layout of oneDNN's matrix products."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    return packed


def multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b for a matrix W that `pack_matrix` returned: (…, inputs) → (…, outputs)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


@cache
def has_packed_products() -> bool:
    """Return whether this torch can multiply packed matrices on this processor; False for all but x86 processors."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with torch.no_grad(), torch.device("cpu"):
        x, weight = torch.eye(8), torch.arange(32.0).view(4, 8)
        try:
            return torch.equal(multiply_packed(x, pack_matrix(weight), torch.zeros(4)), weight.T)
        except (RuntimeError, AttributeError):  # operators that torch's compiler uses, and may rename
            return False


class Linear(nn.Linear):
    """A linear layer; `stacked` is the number of matrices concatenated in its weight, such as 3 for q, k and v."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, stacked: int = 1) -> None:
        super().__init__(inputs, outputs, bias)
        self.stacked = stacked
        self.input_quantizer: nn.Module | None = None  # rounds the input in quantization-aware training
        self.packed_weight: tuple[Tensor, int] | None = None  # see `pack`: the copy, and the version that it is of

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer: (…, inputs) → (…, outputs)."""
        if self.packed_weight is not None and not torch.is_grad_enabled() and x.dtype == self.weight.dtype:
            packed, version = self.packed_weight
            few = x.numel() <= MOST_PACKED_ROWS * self.in_features
            if few and x.device == self.weight.device and self.weight._version == version:
                return multiply_packed(self.quantized(x), packed, self.bias)
        weight = self.weight.to(x.dtype)  # before the bias, so that exported graphs stay the same
        return F.linear(self.quantized(x), weight, None if self.bias is None else self.bias.to(x.dtype))

    def pack(self) -> None:
        """Keep a copy of the weight in oneDNN's memory layout, which makes inference with few rows on a CPU faster.

        Nothing happens on other devices or without oneDNN's kernels. The copy is not saved, and not used once the
        weight has changed.
        """
        if self.weight.device.type == "cpu" and self.weight.dtype == torch.float32 and has_packed_products():
            self.packed_weight = pack_matrix(self.weight.detach()), self.weight._version

    def quantized(self, x: Tensor) -> Tensor:
        """Return the input x, fake-quantized if the layer has an input quantizer."""
        return x if self.input_quantizer is None else self.input_quantizer(x)

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Initialize the weight by an initialization scheme, and the bias to 0."""
        scheme.draw(self.weight, fan_in=self.in_features)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the number of weights of this layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.matrices += self.weight.numel()

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the input and the output of this layer to `saved`, which is what is kept for the backward pass."""
        saved.width += self.in_features + self.out_features

    def weights_per_target(self, tied: int) -> int:
        """Return how many weights each predicted token uses, for counting FLOPs; `tied` is ignored."""
        return self.weight.numel()


class OutputLinear(Linear):
    """The last linear layer of a head, which computes predictions; the optimizer Muon leaves such layers to AdamW."""


class LayerNorm(nn.LayerNorm):
    """Layer normalization (Ba et al., 2016)."""

    def __init__(self, width: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x to mean 0 and variance 1 over the last dimension, then scale and shift."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the input of this norm to `saved`, which is what is kept for the backward pass."""
        saved.width += self.normalized_shape[0]


class RMSNorm(nn.RMSNorm):
    """Root mean square normalization (Zhang and Sennrich, 2019); without `scale` it has no parameters."""

    def __init__(self, width: int, eps: float = 1e-6, scale: bool = True) -> None:
        super().__init__(width, eps=eps, elementwise_affine=scale)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x to mean square 1 over the last dimension, then scale."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        if torch.onnx.is_in_onnx_export():  # ONNX has no operator for it before opset 23
            assert self.eps is not None
            scaled = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
            return scaled if weight is None else scaled * weight
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the input of this norm to `saved`, which is what is kept for the backward pass."""
        saved.width += self.normalized_shape[0]
