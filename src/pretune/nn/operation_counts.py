"""The floating-point operations of layers: each layer reports its own sizes, from which `training.flops` computes FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.packed import Packed
from pretune.runtime.arrays import Array


@runtime_checkable
class CountsOperations(Protocol):
    """The interface of layers that report the sizes from which their FLOPs are computed."""

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the sizes of this layer, without its submodules, to `sizes`, from which a model's FLOPs are computed."""


@runtime_checkable
class CountsTargetWeights(Protocol):
    """The interface of heads that report how many weights each predicted token uses, for counting FLOPs."""

    def weights_per_target(self, tied: int) -> int:
        """Return how many weights each predicted token uses; `tied` is the size of a tied token embedding."""


@dataclass
class OperationSizes:
    """The sizes of a network's layers, summed up, from which the FLOPs for sequences of any lengths are computed."""

    matrices: int = 0  # weights of all linear layers and convolutions
    recurrence: int = 0  # weights of the gates of all recurrent layers
    widths: Counter[tuple[int, int]] = field(default_factory=Counter)  # of self-attention, by reach back and ahead
    cross: int = 0  # weights of the keys and values of a source, which are among the matrices
    cross_width: int = 0  # summed over all cross-attention
    scored: int = 0  # weights of the keys and values of attention with a memory, which are among the matrices
    scored_width: int = 0  # summed over all attention with a memory
    # Functions that return the operations of relative positions.
    relative: list[Callable[[Array, Packed, int], float]] = field(default_factory=list)
    others: list[Callable[[Array], float]] = field(default_factory=list)  # operations of other kinds of self-attention

    def add(self, module: nn.Module) -> None:
        """Add the sizes of a module, without those of its submodules."""
        match module:
            case CountsOperations():
                module.add_operations(self)
            case nn.Linear():  # torch's own layers do not report their sizes
                self.matrices += module.weight.numel()
            case nn.LSTM():
                self.recurrence += sum(p.numel() for p in module.parameters() if p.dim() == 2)

    def add_attention(self, pattern: Pattern, width: int) -> None:
        """Add a softmax self-attention layer with the given pattern; `width` is the total width of its heads."""
        self.widths[pattern.reach or (-1, -1)] += width

    def attention(self, lengths: Array) -> float:
        """Return the FLOPs of all self-attention layers over sequences of the given lengths."""
        plain = sum(4 * width * attention_pairs(lengths, reach).sum() for reach, width in self.widths.items())
        return float(plain + sum(operations(lengths) for operations in self.others))

    def memory(self, lengths: Array, slots: int) -> float:
        """Return the FLOPs of attention to `slots` memory tokens per sequence, for sequences of the given `lengths`.

        The computation of the memory's keys and values is included.
        """
        return float(2 * slots * (self.scored * len(lengths) + 2 * self.scored_width * lengths.sum()))

    def positions(self, lengths: Array, packed: Packed, slots: int) -> float:
        """Return the FLOPs of the relative position terms of all layers.

        `lengths` are the lengths of the sequences in the batch `packed`, and `slots` is the number of memory tokens per
        sequence.
        """
        return sum((operations(lengths, packed, slots) for operations in self.relative), 0.0)


def weights_per_target(part: nn.Module, tied: int) -> int:
    """Return how many weights each predicted token uses in `part`, a module of a head.

    `tied` is the number of weights of a tied token embedding.
    """
    if isinstance(part, CountsTargetWeights):
        return part.weights_per_target(tied)
    own = part.weight.numel() if isinstance(part, nn.Linear) else 0
    return own + sum(weights_per_target(child, tied) for child in part.children())


def attention_pairs(lengths: Array, reach: tuple[int, int]) -> Array:
    """Return the number of query-key pairs of each sequence, (sequences,), for attention within a window.

    `reach` is how many tokens back and ahead a token attends to, besides itself (-1: unlimited).

    >>> attention_pairs(np.array([5.0]), (1, 1)).tolist()  # 2 + 3 + 3 + 3 + 2
    [13.0]
    """
    back, ahead = reach
    if back < 0 or ahead < 0:  # unlimited on one side
        return lengths**2
    seen = lengths.copy()
    for limit in (back, ahead):
        near = np.minimum(lengths - 1, limit)  # tokens that see fewer than the limit on this side
        seen += near * (near + 1) / 2 + (lengths - 1 - near) * near
    return np.asarray(seen)
