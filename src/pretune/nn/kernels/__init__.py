"""Custom Triton kernels for bf16 on CUDA; on other devices and dtypes, plain modules compute the same."""

from __future__ import annotations

import torch
from torch import Tensor


def supports_custom_kernels(x: Tensor) -> bool:
    """Return whether the custom kernels support a tensor: bf16 on CUDA.

    >>> supports_custom_kernels(torch.zeros(2, 3))
    False
    """
    return x.is_cuda and x.dtype == torch.bfloat16
