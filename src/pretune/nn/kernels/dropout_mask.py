"""Triton kernels for the dropout masks of `pretune.nn.dropout`, and a function that tells which elements are kept."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def is_kept(index, seed, least):
    """Return whether dropout keeps the element at `index`: whether its 24-bit hash with `seed` is at least `least`."""
    h = index ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
    h = h + seed * -1640531535
    h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477387
    return ((h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF) >= least


@triton.jit
def _fill(out_at, seed_at, salt, count, least, block: tl.constexpr):
    index = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out_at + index, is_kept(index, tl.load(seed_at) + salt, least), mask=index < count)


@triton.jit
def _fill_factors(out_at, seed_at, salt, count, least, factor, block: tl.constexpr):
    index = tl.program_id(0) * block + tl.arange(0, block)
    stays = is_kept(index, tl.load(seed_at) + salt, least)
    tl.store(out_at + index, tl.where(stays, factor, 0.0).to(out_at.dtype.element_ty), mask=index < count)


def fill_mask(seed: Tensor, count: int, least: int, salt: int) -> Tensor:
    """Return a random mask, (count,), True for elements that dropout keeps: those whose hash is at least `least`.

    `salt` is a number to add to the seed, from `seed_offset`.
    """
    out = torch.empty(count, dtype=torch.bool, device=seed.device)
    _fill[(triton.cdiv(count, BLOCK),)](out, seed, salt, count, least, block=BLOCK)
    return out


def fill_factors(
    seed: Tensor, shape: tuple[int, ...], least: int, salt: int, factor: float, kind: torch.dtype
) -> Tensor:
    """Return random dropout multipliers: `factor` for elements whose hash is at least `least`, 0 for the others.

    `kind` is their dtype, and `salt` a number to add to the seed, from `seed_offset`.
    """
    out = torch.empty(shape, dtype=kind, device=seed.device)
    count = out.numel()
    _fill_factors[(triton.cdiv(count, BLOCK),)](out, seed, salt, count, least, factor, block=BLOCK)
    return out
