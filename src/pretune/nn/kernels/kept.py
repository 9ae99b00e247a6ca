"""The mask of `pretune.nn.dropout` as a Triton kernel, and as a function for others."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def keeps(index, seed, least):
    """Whether elements stay, in the same wrapping 32-bit arithmetic as `pretune.nn.dropout.mix`."""
    h = index ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
    h = h + seed * -1640531535
    h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477387
    return ((h ^ ((h >> 16) & 0xFFFF)) & 0xFFFFFF) >= least


@triton.jit
def _fill(out_at, seed_at, salt, count, least, block: tl.constexpr):
    index = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out_at + index, keeps(index, tl.load(seed_at) + salt, least), mask=index < count)


def fill_kept(seed: Tensor, count: int, least: int, salt: int) -> Tensor:
    """(count,) True for elements that stay."""
    out = torch.empty(count, dtype=torch.bool, device=seed.device)
    _fill[(triton.cdiv(count, BLOCK),)](out, seed, salt, count, least, block=BLOCK)
    return out
