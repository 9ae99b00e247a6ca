"""Random packed queries, keys and values, and the attention patterns to try on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pretune.nn.attention.patterns import (
    block_pattern,
    causal,
    dilated,
    full,
    global_tokens,
    permutation,
    prefix,
    window,
)
from pretune.packed import Packed, pack

WIDTH, HEADS = 8, 2
PLAN = torch.eye(150)[torch.arange(150) ^ 1] + torch.eye(150)  # pairs of neighboring blocks attend to each other
PATTERNS = {
    "full": full,
    "causal": causal,
    "window": window(2),
    "dilated": dilated(2, 3),
    "prefix": prefix,
    "permutation": permutation,
    "longformer": window(1) | global_tokens,
    "big bird": block_pattern(PLAN, 2, "neighbors") | global_tokens,
}


def random_packed(lengths: list[int], seed: int = 0) -> Packed:
    """Return packed sequences with random columns for all patterns."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    columns = {
        "prefix": rng.integers(0, 2, n),
        "stream": rng.integers(0, 2, n),
        "order": rng.integers(0, 6, n),
        "segment": rng.integers(0, 2, n),
        "global": rng.integers(0, 4, n) == 0,
    }
    return pack(np.zeros(n, dtype=np.int64), np.array(lengths), columns=columns)


def qkv(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values of `n` tokens, (n, HEADS, WIDTH) each."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, HEADS, WIDTH, generator=generator, requires_grad=True) for _ in range(3))  # type: ignore[return-value]
