"""What layers keep for the backward pass: each layer reports its own, from which `training.memory` estimates activations.

A linear layer or norm keeps its input. The output of a linear layer is kept, too, by whatever reads it next, except where
it is added to the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class SavesActivations(Protocol):
    """The interface of layers that report what they keep for the backward pass."""

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer and its submodules keep for the backward pass to `saved`."""


@runtime_checkable
class SavesLogits(Protocol):
    """The interface of output layers that compute logits over a vocabulary."""

    def logits_per_target(self, vocabulary: int) -> int:
        """Return how many logits are computed for each predicted token; `vocabulary` is that of the token embedding."""


@dataclass
class SavedActivations:
    """The numbers per token that the layers of a network keep for the backward pass, summed up.

    The sum is incomplete if `unknown` lists classes of layers, which do not report what they keep.

    >>> from pretune.nn.feed_forward import FeedForward
    >>> saved = SavedActivations(hidden=10)
    >>> saved.add(FeedForward(10, 40))  # its input, and the inner states before and after the activation
    >>> saved.total
    90
    """

    hidden: int  # the width of hidden states
    recompute: bool = False  # gradient checkpointing: layers keep their inputs, and recompute the rest
    width: int = 0
    largest: int = 0  # what the largest recomputed layer keeps during its backward pass
    source: SavedActivations | None = None  # the same per token of the source, in an encoder-decoder
    unknown: list[str] = field(default_factory=list)  # classes of layers that do not report what they keep

    @property
    def total(self) -> int:
        """The numbers per token that all layers keep, including one layer that is recomputed."""
        return self.width + self.largest

    def add(self, layer: object) -> None:
        """Add what a layer and its submodules keep."""
        match layer:
            case SavesActivations():
                layer.add_saved_activations(self)
            case nn.Sequential() | nn.ModuleList():
                for part in layer:
                    self.add(part)
            case nn.Identity():
                pass
            case _:
                self.unknown.append(type(layer).__name__)

    def add_layer(self, parts: Iterable[nn.Module]) -> None:
        """Add what a layer with the given parts keeps; with gradient checkpointing, this is its input."""
        before = self.width
        for part in parts:
            self.add(part)
        if self.recompute:
            self.largest = max(self.largest, self.width - before)
            self.width = before + self.hidden
