"""Dropout whose mask is a hash of (seed, layer, element): the same on every device and in every order.

A random generator takes ten rounds per element, more than the rest of a fused layer norm; two rounds of mixing are
cheap. On a GPU, a custom operator computes the mask: left to itself, the compiler would compute it again in the
backward pass, inside a kernel that would then take ten times as long.
"""

from __future__ import annotations

from math import pi, prod

import torch
from torch import Tensor, nn

from pretune.nn.saved_activations import SavedActivations

DEPTHS_APART = 1 << 16  # number of salts per depth: more than a model has dropout layers
NOISE = DEPTHS_APART - 1  # the salt of random numbers that are not dropout masks


class Dropout(nn.Module):
    """Dropout: in training, a fraction `rate` of the elements is set to 0, and the others are divided by 1 - rate."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.salt = 0  # distinguishes layers
        # Not a buffer: all layers of a model share one tensor, which the loop sets before each forward.
        self.seed = torch.zeros((), dtype=torch.int32)

    @property
    def is_active(self) -> bool:
        """Return whether elements are dropped: in training, at a rate above 0."""
        return self.training and self.rate != 0.0

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        """Apply dropout to a tensor; a layer that several depths of a network share has a separate mask per `depth`."""
        if not self.is_active:
            return x
        return torch.where(self.keep_mask(x.numel(), x.is_cuda, depth).view(x.shape), x, 0.0) / (1.0 - self.rate)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add nothing to `saved`: the backward pass computes the mask again from its seed."""

    def factors(self, rows: int, like: Tensor) -> Tensor:
        """Return random dropout multipliers, each 0 or 1 / (1 - rate): (rows, width of `like`).

        torch.compile does not support this method.
        """
        shape = rows, like.shape[1]
        if like.is_cuda:
            from pretune.nn.kernels.dropout_mask import fill_factors

            threshold, offset = dropout_threshold(self.rate), seed_offset(self.salt_for_depth(0))
            return fill_factors(self.seed, shape, threshold, offset, 1.0 / (1.0 - self.rate), like.dtype)
        return self.keep_mask(rows * like.shape[1], on_gpu=False).view(shape).to(like.dtype) / (1.0 - self.rate)

    def keep_mask(self, count: int, on_gpu: bool, depth: int = 0) -> Tensor:
        """Return a random mask, (count,), True for the elements that this dropout layer keeps.

        A layer that runs at several depths of a network has another mask at each `depth`.
        """
        make = dropout_mask_cuda if on_gpu else dropout_mask
        return make(self.seed, count, self.rate, self.salt_for_depth(depth))

    def salt_for_depth(self, depth: int) -> int:
        """Return the integer that distinguishes this dropout layer's masks at network depth `depth` from all others."""
        return self.salt + depth * DEPTHS_APART


class Noise(nn.Module):
    """A source of standard normal noise, new at every training step but constant in evaluation or with `fixed_seed`."""

    def __init__(self, fixed_seed: int | None = None) -> None:
        super().__init__()
        self.fixed_seed = fixed_seed
        self.cache: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}  # cache of fixed noise
        self.seed = torch.zeros((), dtype=torch.int32)

    def forward(self, shape: tuple[int, ...], depth: int, device: torch.device) -> Tensor:
        """Return normal noise of the given shape, different at each network depth `depth` unless the seed is fixed."""
        if self.fixed_seed is not None:
            if (shape, device) not in self.cache:
                numbers = torch.randn(shape, generator=torch.Generator().manual_seed(self.fixed_seed))
                self.cache[shape, device] = numbers.to(device)
            return self.cache[shape, device]
        seed = self.seed if self.training else torch.zeros_like(self.seed)
        index = torch.arange(2 * prod(shape), dtype=torch.int32, device=device)
        bits = hash_bits(index, seed.to(device) + seed_offset(NOISE + depth * DEPTHS_APART)).view(2, *shape)
        first, second = (bits + 0.5) / (1 << 24)  # Box and Muller, 1958: from two uniform numbers to a normal one
        return (-2 * first.log()).sqrt() * (2 * pi * second).cos()


def dropout_mask(seed: Tensor, count: int, rate: float, salt: int) -> Tensor:
    """Return a random mask, (count,), True for elements that dropout keeps; `salt` identifies the dropout layer."""
    index = torch.arange(count, dtype=torch.int32, device=seed.device)
    return hash_bits(index, seed + seed_offset(salt)) >= dropout_threshold(rate)


def seed_offset(salt: int) -> int:
    """Return the number that is added to the dropout seed for the layer with the integer `salt`."""
    return _wrapped(salt * 0x27D4EB2F)


def dropout_threshold(rate: float) -> int:
    """Return the 24-bit integer t such that a uniform 24-bit random number is below t with probability `rate`."""
    return int(rate * (1 << 24))


@torch.library.custom_op("pretune::kept", mutates_args=())
def dropout_mask_cuda(seed: Tensor, count: int, rate: float, salt: int) -> Tensor:
    """Return a random mask, (count,), True for elements that dropout keeps, computed by one GPU kernel.

    `salt` identifies the dropout layer.
    """
    from pretune.nn.kernels.dropout_mask import fill_mask

    return fill_mask(seed, count, dropout_threshold(rate), seed_offset(salt))


@dropout_mask_cuda.register_fake
def _(seed: Tensor, count: int, rate: float, salt: int) -> Tensor:
    return torch.empty(count, dtype=torch.bool, device=seed.device)


def hash_bits(index: Tensor, seed: Tensor) -> Tensor:
    """Return 24 pseudorandom bits for each index, by MurmurHash3's finalizer in wrapping 32-bit arithmetic.

    The seed enters before the first product; otherwise a compiler would turn index · constant into an address, which
    must not wrap.
    """
    h = index ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * _wrapped(0x85EBCA6B)
    h = h + seed * _wrapped(0x9E3779B1)  # so that another seed gives more than a permutation of the same bits
    h = (h ^ ((h >> 13) & 0x7FFFF)) * _wrapped(0xC2B2AE35)
    return (h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF


def _wrapped(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def disable_dropout(root: nn.Module) -> bool:
    """Turn off all dropout of a network, including that of attention weights, and return whether it had any."""
    stopped = disable_attention_dropout(root)
    for module in root.modules():
        if isinstance(module, Dropout) and module.rate:
            module.rate, stopped = 0.0, True
    return stopped


def disable_attention_dropout(root: nn.Module) -> bool:
    """Turn off dropout of attention weights, which fast kernels do not support; return whether any layer had it."""
    stopped = False
    for module in root.modules():
        if isinstance(getattr(module, "dropout", None), float) and module.dropout:
            module.dropout, stopped = 0.0, True  # type: ignore[assignment]
    return stopped


def share_dropout_seed(root: nn.Module, device: torch.device) -> Tensor:
    """Give all dropout and noise layers of a network one seed tensor and a number each; return the seed tensor.

    A training loop sets this seed before each forward pass.
    """
    seed = torch.zeros((), dtype=torch.int32, device=device)
    for salt, layer in enumerate(module for module in root.modules() if isinstance(module, Dropout)):
        layer.seed, layer.salt = seed, salt
    for noise in (module for module in root.modules() if isinstance(module, Noise)):
        noise.seed = seed
    return seed
