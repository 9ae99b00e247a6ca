"""All initialization in one place."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def initialize(module: Module, deviation: float = 0.02, zero_outputs: bool = False) -> Module:
    """BERT's rule: matrices and vectors of tokens from a truncated normal, biases 0, norms 1.

    With `zero_outputs`, the last matrix of every part of a layer starts at 0, so that a layer starts as the identity.
    """
    norms = (nn.LayerNorm, nn.RMSNorm)
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            if isinstance(child, norms):
                nn.init.ones_(parameter) if name == "weight" else nn.init.zeros_(parameter)
            elif "bias" in name:
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                with torch.no_grad():
                    nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
    if zero_outputs:
        # Once all else is done: a part comes before the matrices in it, which would be drawn anew.
        for child in module.modules():
            output = getattr(child, "output", None)
            if isinstance(output, nn.Linear):
                nn.init.zeros_(output.weight)
    return module


def scale_outputs(module: Module, factor: float) -> Module:
    """GPT-2's rule: the last matrix of every part of a layer starts smaller, as many of them add up."""
    for child in module.modules():
        output = getattr(child, "output", None)
        if isinstance(output, nn.Linear):
            with torch.no_grad():
                output.weight.mul_(factor)
    return module
