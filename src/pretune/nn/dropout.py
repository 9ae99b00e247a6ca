"""Dropout whose mask is a hash of (seed, layer, element): the same on every device and in every order.

A random generator takes ten rounds per element, more than the rest of a fused layer norm; two rounds of mixing are cheap. On a GPU
a custom operator computes the mask, because the compiler would otherwise recompute it in the backward pass, inside a kernel that
then takes ten times as long.
"""

from __future__ import annotations

from math import pi, prod

import torch
from torch import Tensor, nn

DEPTHS_APART = 1 << 16  # number of salts per depth: more than a model has dropout layers
NOISE = DEPTHS_APART - 1  # the salt of random numbers that are not dropout masks


class Dropout(nn.Module):
    """Dropout: in training, a fraction `share` of the elements is set to 0 and the others are scaled up."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self.salt = 0  # distinguishes layers
        # Not a buffer: all layers of a model share one tensor, which the loop sets before each forward.
        self.seed = torch.zeros((), dtype=torch.int32)

    @property
    def is_active(self) -> bool:
        """Return whether dropout is active now."""
        return self.training and self.share != 0.0

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        """Apply dropout to a tensor of any shape; a layer that runs at several depths draws another mask at each."""
        if not self.is_active:
            return x
        return torch.where(self.keep_mask(x.numel(), x.is_cuda, depth).view(x.shape), x, 0.0) / (1.0 - self.share)

    def factors(self, rows: int, like: Tensor) -> Tensor:
        """Return the factors of dropout in training, (rows, width), with the width and dtype of `like`.

        On a GPU it is one kernel without a custom operator, whose overhead would be larger; not for compiled code.
        """
        if like.is_cuda:
            from pretune.nn.kernels.dropout_mask import fill_factors

            shape, factor = (rows, like.shape[1]), 1.0 / (1.0 - self.share)
            return fill_factors(
                self.seed, shape, dropout_threshold(self.share), seed_offset(self.salt_for_depth(0)), factor, like.dtype
            )
        stays = self.keep_mask(rows * like.shape[1], on_gpu=False).view(rows, like.shape[1])
        return stays.to(like.dtype) / (1.0 - self.share)

    def keep_mask(self, count: int, on_gpu: bool, depth: int = 0) -> Tensor:
        """Return the mask (count,) of elements that are kept."""
        make = dropout_mask_cuda if on_gpu else dropout_mask
        return make(self.seed, count, self.share, self.salt_for_depth(depth))

    def salt_for_depth(self, depth: int) -> int:
        """Return the salt that distinguishes this layer at this depth from all others."""
        return self.salt + depth * DEPTHS_APART


class Noise(nn.Module):
    """Standard normal noise from the same hash: new for each seed in training, constant otherwise.

    With `fixed`, it is drawn by torch's generator with that seed, as in `transformers`.
    """

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()
        self.fixed = fixed
        self.drawn: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}  # cache of fixed noise
        self.seed = torch.zeros((), dtype=torch.int32)

    def forward(self, shape: tuple[int, ...], depth: int, device: torch.device) -> Tensor:
        """Return noise of a shape, different at every depth unless it is fixed."""
        if self.fixed is not None:
            if (shape, device) not in self.drawn:
                numbers = torch.randn(shape, generator=torch.Generator().manual_seed(self.fixed))
                self.drawn[shape, device] = numbers.to(device)
            return self.drawn[shape, device]
        seed = self.seed if self.training else torch.zeros_like(self.seed)
        index = torch.arange(2 * prod(shape), dtype=torch.int32, device=device)
        bits = hash_bits(index, seed.to(device) + seed_offset(NOISE + depth * DEPTHS_APART)).view(2, *shape)
        first, second = (bits + 0.5) / (1 << 24)  # Box and Muller, 1958: from two uniform numbers to a normal one
        return (-2 * first.log()).sqrt() * (2 * pi * second).cos()


def dropout_mask(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    """Return the mask (count,) of elements that are kept."""
    index = torch.arange(count, dtype=torch.int32, device=seed.device)
    return hash_bits(index, seed + seed_offset(salt)) >= dropout_threshold(share)


def seed_offset(salt: int) -> int:
    """Return the number that a layer with this salt adds to the seed."""
    return _wrapped(salt * 0x27D4EB2F)


def dropout_threshold(share: float) -> int:
    """Return the threshold on 24 random bits below which an element is dropped."""
    return int(share * (1 << 24))


@torch.library.custom_op("pretune::kept", mutates_args=())
def dropout_mask_cuda(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    """Compute the mask of `dropout_mask` in one kernel, whose result is saved for the backward pass."""
    from pretune.nn.kernels.dropout_mask import fill_mask

    return fill_mask(seed, count, dropout_threshold(share), seed_offset(salt))


@dropout_mask_cuda.register_fake
def _(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    return torch.empty(count, dtype=torch.bool, device=seed.device)


def hash_bits(index: Tensor, seed: Tensor) -> Tensor:
    """Return 24 random bits for each index, in wrapping 32-bit arithmetic, after the finalizer of MurmurHash3.

    The seed is mixed in first: a compiler would fold index · constant into an address, which must not wrap.
    """
    h = index ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * _wrapped(0x85EBCA6B)
    h = h + seed * _wrapped(0x9E3779B1)  # so that another seed gives more than a permutation of the same bits
    h = (h ^ ((h >> 13) & 0x7FFFF)) * _wrapped(0xC2B2AE35)
    return (h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF


def _wrapped(number: int) -> int:
    """Return a number as a signed 32-bit integer."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def disable_dropout(root: nn.Module) -> bool:
    """Turn off all dropout, including that of attention weights, and return whether there was any."""
    stopped = disable_attention_dropout(root)
    for module in root.modules():
        if isinstance(module, Dropout) and module.share:
            module.share, stopped = 0.0, True
    return stopped


def disable_attention_dropout(root: nn.Module) -> bool:
    """Turn off dropout of attention weights, which the fast paths do not support, and return whether there was any."""
    stopped = False
    for module in root.modules():
        if isinstance(getattr(module, "dropout", None), float) and module.dropout:
            module.dropout, stopped = 0.0, True  # type: ignore[assignment]
    return stopped


def share_dropout_seed(root: nn.Module, device: torch.device) -> Tensor:
    """Let all dropout and noise layers of a model share one seed, give each dropout layer its salt, and return the seed."""
    seed = torch.zeros((), dtype=torch.int32, device=device)
    layers = [module for module in root.modules() if isinstance(module, Dropout)]
    for salt, layer in enumerate(layers):
        layer.seed, layer.salt = seed, salt
    for noise in (module for module in root.modules() if isinstance(module, Noise)):
        noise.seed = seed
    return seed
