"""Dropout whose mask is a hash of (seed, layer, element): nothing to store for the backward, the same on every device.

A generator's ten rounds an element cost more than the rest of a fused layer norm; three rounds of mixing do not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Sets a share of the elements to zero and scales the others up, in training alone."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self.salt = 0  # tells layers apart
        # Not a buffer: all layers of a model share one tensor, which the loop sets before each forward.
        self.seed = torch.zeros((), dtype=torch.int32)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or self.share == 0.0:
            return x
        index = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        kept = mix(index, self.seed + _wrapped(self.salt * 0x27D4EB2F)) >= int(self.share * (1 << 24))
        return torch.where(kept, x, 0.0) * (1.0 / (1.0 - self.share))


def mix(index: Tensor, seed: Tensor) -> Tensor:
    """24 random bits for each index, in 32-bit arithmetic that wraps around, after MurmurHash3's finalizer.

    The seed comes in first: a compiler would fold index · constant into an address, which must not wrap.
    """
    h = index ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * _wrapped(0x85EBCA6B)
    h = h + seed * _wrapped(0x9E3779B1)  # so that another seed is more than another order of the same bits
    h = (h ^ ((h >> 13) & 0x7FFFF)) * _wrapped(0xC2B2AE35)
    return (h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF


def _wrapped(number: int) -> int:
    """A number as a signed 32-bit one."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def share_seed(root: nn.Module, device: torch.device) -> Tensor:
    """Let all dropout layers of a model read one seed, and tell them apart."""
    seed = torch.zeros((), dtype=torch.int32, device=device)
    layers = [module for module in root.modules() if isinstance(module, Dropout)]
    for salt, layer in enumerate(layers):
        layer.seed, layer.salt = seed, salt
    return seed
