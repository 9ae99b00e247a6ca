"""What a backbone is and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from pretune.nn.embeddings import Embeddings
from pretune.packed import Packed

Keep = Literal["last", "all"] | Sequence[int]


@dataclass
class States:
    """The kept layers, (n, width) each, and what to hand to the next batch."""

    layers: list[Tensor]
    carry: Any = None  # detached: segment memory, recurrent state, key-value cache

    @property
    def last(self) -> Tensor:
        """The top layer's states."""
        return self.layers[-1]


class Backbone(Protocol):
    """Anything that turns packed tokens into states."""

    embed: Embeddings
    vocabulary_head: Callable[[], nn.Module]  # how this family goes from states to the vocabulary
    pooler: Callable[[], nn.Module]  # how it goes from a sequence's state to what a classifier stands on
    classifier: Callable[[int], nn.Module]  # and from there to a logit a class
    tagger: Callable[[], nn.Module]  # how it goes from a token's state to what tags stand on
    answerer: Callable[[], nn.Module]  # the same for the logits of answers
    choice_pooler: Callable[[], nn.Module]  # like `pooler`, for multiple choice
    choice_output: Callable[[int], nn.Module]  # like `classifier`, for multiple choice

    @property
    def width(self) -> int:
        """Width of the states."""

    @property
    def depth(self) -> int:
        """How many layers follow on the embeddings."""

    @property
    def longest(self) -> int | None:
        """Positions the model has; None: any."""

    def __call__(self, *packed: Packed, carry: Any = None, keep: Keep = "last") -> States: ...

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Its modules from the embedding to the top; shared layers are one group."""


def kept(keep: Keep, layers: int) -> set[int]:
    """Which of the layers 0 (the embeddings) to `layers` to keep.

    >>> sorted(kept([0, -1], 12))
    [0, 12]
    """
    if keep == "last":
        return {layers}
    if keep == "all":
        return set(range(layers + 1))
    return {layer % (layers + 1) for layer in keep}  # type: ignore[operator]
