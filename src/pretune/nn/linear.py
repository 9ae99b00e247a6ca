"""Linear layers and norms that compute in the dtype of their input.

Parameters stay in fp32; activations are fp32 on a CPU and bf16 on an accelerator. Casting a weight where it is used is a small
kernel that a compiler fuses, and there is no hidden autocast state.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.initialization import InitializationScheme
from pretune.nn.operation_counts import OperationSizes


class Linear(nn.Linear):
    """A linear layer; `stacked` is the number of matrices concatenated in its weight, such as 3 for q, k and v."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, stacked: int = 1) -> None:
        super().__init__(inputs, outputs, bias)
        self.stacked = stacked
        self.input_quantizer: nn.Module | None = None  # rounds the input in quantization-aware training

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer: (…, inputs) → (…, outputs)."""
        weight = self.weight.to(x.dtype)  # before the bias, so that exported graphs stay the same
        return F.linear(self.quantized(x), weight, None if self.bias is None else self.bias.to(x.dtype))

    def quantized(self, x: Tensor) -> Tensor:
        """Return the input x, fake-quantized if the layer has an input quantizer."""
        return x if self.input_quantizer is None else self.input_quantizer(x)

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Initialize the weight by an initialization scheme, and the bias to 0."""
        scheme.draw(self.weight, fan_in=self.in_features)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the number of weights to `sizes`, the layer sizes from which the FLOPs of a model are computed."""
        sizes.matrices += self.weight.numel()

    def weights_per_target(self, tied: int) -> int:
        """Return the number of weights that each target token is multiplied with, for FLOPs; `tied` is ignored."""
        return self.weight.numel()


class OutputLinear(Linear):
    """The last linear layer of a head, which computes predictions; the optimizer Muon leaves it to AdamW."""


class LayerNorm(nn.LayerNorm):
    """Layer normalization (Ba et al., 2016)."""

    def __init__(self, width: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x to mean 0 and variance 1 over the last dimension, then scale and shift."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


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
