"""Batches and small backbones whose operations PyTorch's FlopCounterMode can count."""

from __future__ import annotations

from typing import Any

import numpy as np

from pretune.families import FAMILIES
from pretune.packed import Batch, pack, pack_targets


def even_batch(sides: int, length: int, rows: int) -> Batch:
    """Return sequences of equal length, so that the dense path has no padding, which the counter would count."""
    rng = np.random.default_rng(0)
    packed = tuple(pack(rng.integers(5, 200, length * rows), np.full(rows, length)) for _ in range(sides))
    at = np.arange(0, length * rows, 5)
    targets = {"mlm": pack_targets(at, at % 200), "nsp": pack_targets(np.arange(rows) * length, np.arange(rows) % 2)}
    counts = {"mlm": float(len(at)), "nsp": float(rows), "tokens": float(sides * length * rows)}
    return Batch(packed, targets, counts, rows=np.arange(rows))


def small_backbone(family: str, **config: Any) -> Any:
    """Return the backbone of a family, with a small vocabulary and width."""
    return FAMILIES[family].build(FAMILIES[family].read_config({"vocab_size": 300, "d_model": 32, **config}))
