"""What every family's parity test needs: the same ragged batch for the peer, padded, and for us, packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.packed import Packed, pack


@dataclass
class Ragged:
    """Random sequences of different lengths, both ways."""

    packed: Packed
    input_ids: Tensor  # (b, L)
    attention_mask: Tensor
    token_type_ids: Tensor

    @classmethod
    def make(cls, vocabulary: int, lengths: tuple[int, ...] = (7, 12, 1, 5), seed: int = 0, lowest: int = 5) -> Ragged:
        chance = np.random.default_rng(seed)
        ids = chance.integers(lowest, vocabulary, sum(lengths))
        segment = chance.integers(0, 2, sum(lengths))
        sizes = np.array(lengths)
        packed = pack(ids, sizes, columns={"segment": segment})
        longest = max(lengths)
        padded = {name: torch.zeros(len(lengths), longest, dtype=torch.long) for name in ("ids", "mask", "types")}
        for row, (start, size) in enumerate(zip(np.cumsum(sizes) - sizes, sizes, strict=True)):
            padded["ids"][row, :size] = torch.from_numpy(ids[start : start + size])
            padded["types"][row, :size] = torch.from_numpy(segment[start : start + size])
            padded["mask"][row, :size] = 1
        return cls(packed, padded["ids"], padded["mask"], padded["types"])

    @property
    def inputs(self) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
        }

    def flat(self, padded: Tensor) -> Tensor:
        """(b, L, …) → (n, …): the peer's output at the real tokens."""
        return padded[self.attention_mask.bool()]
