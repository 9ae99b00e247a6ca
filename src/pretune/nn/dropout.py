"""Dropout whose mask is a hash of (seed, layer, element): the same on every device and in every order.

A generator's ten rounds an element cost more than the rest of a fused layer norm; two rounds of mixing do not. On a GPU the
mask is made by an operator of its own, because the compiler, left to itself, makes it once more in the backward, inside a
kernel that then takes ten times as long.
"""

from __future__ import annotations

from math import pi, prod

import torch
from torch import Tensor, nn

DEPTHS_APART = 1 << 16  # salts of one depth: more than a model has layers of dropout
NOISE = DEPTHS_APART - 1  # the salt of what is no dropout


class Dropout(nn.Module):
    """Sets a share of the elements to zero and scales the others up, in training alone."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self.salt = 0  # tells layers apart
        # Not a buffer: all layers of a model share one tensor, which the loop sets before each forward.
        self.seed = torch.zeros((), dtype=torch.int32)

    @property
    def drops(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.share != 0.0

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        """Any shape. A layer that runs at several depths draws another mask at each."""
        if not self.drops:
            return x
        return torch.where(self.stays(x.numel(), x.is_cuda, depth).view(x.shape), x, 0.0) / (1.0 - self.share)

    def factors(self, rows: int, like: Tensor) -> Tensor:
        """(rows, width): what is multiplied with in training, as wide and of the type of another tensor.

        One kernel on a GPU, without an operator around it, which would take the host longer: not for compiled code.
        """
        if like.is_cuda:
            from pretune.nn.kernels.dropout_mask import fill_factors

            shape, factor = (rows, like.shape[1]), 1.0 / (1.0 - self.share)
            return fill_factors(self.seed, shape, threshold(self.share), salting(self.salt_at(0)), factor, like.dtype)
        stays = self.stays(rows * like.shape[1], on_gpu=False).view(rows, like.shape[1])
        return stays.to(like.dtype) / (1.0 - self.share)

    def stays(self, count: int, on_gpu: bool, depth: int = 0) -> Tensor:
        """(count,) True for elements that are not dropped."""
        make = kept_on_gpu if on_gpu else kept
        return make(self.seed, count, self.share, self.salt_at(depth))

    def salt_at(self, depth: int) -> int:
        """What tells this layer at this depth from all others."""
        return self.salt + depth * DEPTHS_APART


class Noise(nn.Module):
    """Standard normal numbers by the same hash: in training others for each seed, else always the same.

    With `fixed`, they are those that torch's own generator draws after that seed, as `transformers` has them.
    """

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()
        self.fixed = fixed
        self.drawn: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}  # of fixed ones
        self.seed = torch.zeros((), dtype=torch.int32)

    def forward(self, shape: tuple[int, ...], depth: int, device: torch.device) -> Tensor:
        """Other ones at every depth, unless they are fixed."""
        if self.fixed is not None:
            if (shape, device) not in self.drawn:
                numbers = torch.randn(shape, generator=torch.Generator().manual_seed(self.fixed))
                self.drawn[shape, device] = numbers.to(device)
            return self.drawn[shape, device]
        seed = self.seed if self.training else torch.zeros_like(self.seed)
        index = torch.arange(2 * prod(shape), dtype=torch.int32, device=device)
        bits = mix(index, seed.to(device) + salting(NOISE + depth * DEPTHS_APART)).view(2, *shape)
        first, second = (bits + 0.5) / (1 << 24)  # Box and Muller, 1958: two uniform numbers make a normal one
        return (-2 * first.log()).sqrt() * (2 * pi * second).cos()


def kept(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    """(count,) True for elements that stay."""
    index = torch.arange(count, dtype=torch.int32, device=seed.device)
    return mix(index, seed + salting(salt)) >= threshold(share)


def salting(salt: int) -> int:
    """What a layer adds to the seed."""
    return _wrapped(salt * 0x27D4EB2F)


def threshold(share: float) -> int:
    """Elements whose 24 bits are below this are dropped."""
    return int(share * (1 << 24))


@torch.library.custom_op("pretune::kept", mutates_args=())
def kept_on_gpu(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    """The same in one kernel, whose result is kept for the backward."""
    from pretune.nn.kernels.dropout_mask import fill_kept

    return fill_kept(seed, count, threshold(share), salting(salt))


@kept_on_gpu.register_fake
def _(seed: Tensor, count: int, share: float, salt: int) -> Tensor:
    return torch.empty(count, dtype=torch.bool, device=seed.device)


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


def stop_dropout(root: nn.Module) -> bool:
    """No dropout from now on, that of attention weights included; whether there was any."""
    stopped = stop_attention_dropout(root)
    for module in root.modules():
        if isinstance(module, Dropout) and module.share:
            module.share, stopped = 0.0, True
    return stopped


def stop_attention_dropout(root: nn.Module) -> bool:
    """No dropout on attention weights, which no fast path has; whether there was any."""
    stopped = False
    for module in root.modules():
        if isinstance(getattr(module, "dropout", None), float) and module.dropout:
            module.dropout, stopped = 0.0, True  # type: ignore[assignment]
    return stopped


def share_seed(root: nn.Module, device: torch.device) -> Tensor:
    """Let all dropout layers and all noise of a model read one seed, and tell the layers apart."""
    seed = torch.zeros((), dtype=torch.int32, device=device)
    layers = [module for module in root.modules() if isinstance(module, Dropout)]
    for salt, layer in enumerate(layers):
        layer.seed, layer.salt = seed, salt
    for noise in (module for module in root.modules() if isinstance(module, Noise)):
        noise.seed = seed
    return seed
