"""What a backbone is and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from pretune.nn.embeddings import Embeddings
from pretune.nn.linear import OutputLinear
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


class TaskParts:
    """The parts that a family puts between states and the outputs of tasks, each made anew for each head."""

    pooler: Callable[[], nn.Module]  # from a sequence's state to the vector that a classifier reads
    classifier: Callable[[int], nn.Module]  # from there to one logit per class
    tagger: Callable[[], nn.Module]  # from a token's state to the vector that its tag is read from
    answerer: Callable[[], nn.Module]  # the same for answers
    choice_pooler: Callable[[], nn.Module]  # like `pooler`, for multiple choice
    choice_output: Callable[[int], nn.Module]  # like `classifier`, for multiple choice

    def set_parts(
        self,
        width: int,
        *,
        pooler: Callable[[], nn.Module] = nn.Identity,
        classifier: Callable[[int], nn.Module] | None = None,
        tagger: Callable[[], nn.Module] = nn.Identity,
        answerer: Callable[[], nn.Module] | None = None,
        choice_pooler: Callable[[], nn.Module] | None = None,
        choice_output: Callable[[int], nn.Module] | None = None,
    ) -> None:
        """Set the parts; `width` is that of the states.

        By default a classifier is a linear map with biases, answers have what tags have, and multiple choice what
        classification has.
        """
        self.pooler, self.tagger = pooler, tagger
        self.classifier = partial(OutputLinear, width) if classifier is None else classifier
        self.answerer = tagger if answerer is None else answerer
        self.choice_pooler = pooler if choice_pooler is None else choice_pooler
        self.choice_output = self.classifier if choice_output is None else choice_output

    def take_parts(self, other: TaskParts) -> None:
        """Set the parts of another backbone."""
        self.pooler, self.classifier = other.pooler, other.classifier
        self.tagger, self.answerer = other.tagger, other.answerer
        self.choice_pooler, self.choice_output = other.choice_pooler, other.choice_output


class Backbone(Protocol):
    """Anything that turns packed tokens into states."""

    embed: Embeddings
    vocabulary_head: Callable[[], nn.Module]  # how this family goes from states to the vocabulary
    pooler: Callable[[], nn.Module]  # the parts of task heads: see TaskParts
    classifier: Callable[[int], nn.Module]
    tagger: Callable[[], nn.Module]
    answerer: Callable[[], nn.Module]
    choice_pooler: Callable[[], nn.Module]
    choice_output: Callable[[int], nn.Module]

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
