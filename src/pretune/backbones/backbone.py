"""The interface that every backbone implements, and the hidden states that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import Activation
from pretune.nn.linear import OutputLinear
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError

LayerSelection = Literal["last", "all"] | Sequence[int]


@dataclass
class BackboneOutput:
    """The output of a backbone: hidden states (tokens, width) of each requested layer, and a state to continue from.

    The state is a segment memory, a recurrent state, or a key-value cache; None for backbones that keep no state.
    """

    layers: list[Tensor]
    state: Any = None  # detached: segment memory, recurrent state, or key-value cache

    @property
    def last(self) -> Tensor:
        """The hidden states of the topmost requested layer, (tokens, width)."""
        return self.layers[-1]

    def last_at(self, at: Tensor) -> Tensor:
        """Return the hidden states of that layer for the m tokens with the indices `at` alone, (m, width).

        The tokens are in the order of their sequences. Heads that read few tokens use this in place of `last`: see
        `DeferredOutput`.

        >>> BackboneOutput([torch.eye(3)]).last_at(torch.tensor([2])).tolist()
        [[0.0, 0.0, 1.0]]
        """
        return self.last[at]


class DeferredOutput(BackboneOutput):
    """The output of a backbone that computes its top layer when it is read, for as many tokens as are read.

    Many heads read one token per sequence. Most of the top layer is then computed for these tokens alone: in attention,
    they are the only queries; keys and values are those of all tokens.
    """

    def __init__(self, compute: Callable[[Tensor | None], Tensor]) -> None:
        """Keep the function that computes the states of the tokens with given indices, or of all tokens for None."""
        self.compute, self.state = compute, None
        self._read: tuple[Tensor, Tensor] | None = None  # the tokens that were read last, and their states

    @cached_property
    def layers(self) -> list[Tensor]:  # type: ignore[override]
        """The hidden states of the top layer, (tokens, width), in a list."""
        return [self.compute(None)]

    def last_at(self, at: Tensor) -> Tensor:
        """Return the hidden states of the top layer for the m tokens with the indices `at` alone, (m, width)."""
        if self._read is None or not torch.equal(self._read[0], at):  # several heads may read the same tokens
            self._read = at, self.compute(at)
        return self._read[1]


def defers_top_layer(x: Tensor) -> bool:
    """Return whether a backbone with hidden states `x` returns a `DeferredOutput`: in inference on a CPU.

    Elsewhere, shapes that depend on the data cost more than the top layer.
    """
    return x.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


class TaskParts(TypedDict, total=False):
    """The functions with which a model family creates modules of its task heads, such as poolers and classifiers."""

    pooler: Callable[[], nn.Module]  # from a sequence's hidden state to the vector that the classifier reads
    classifier: Callable[[int], nn.Module]  # from that vector to one logit per class
    tagger: Callable[[], nn.Module]  # from a token's hidden state to the vector that the tag classifier reads
    answerer: Callable[[], nn.Module]  # the same for extractive question answering
    choice_pooler: Callable[[], nn.Module]  # like `pooler`, for multiple choice
    choice_output: Callable[[int], nn.Module]  # like `classifier`, for multiple choice
    detection_activation: Activation  # in the head for replaced tokens


class TaskHeadParts:
    """The base class of backbones, which holds the functions that create modules of task heads, such as poolers."""

    def set_task_parts(self, width: int, **parts: Unpack[TaskParts]) -> None:
        """Store the functions (keyword arguments, see `TaskParts`) that create the modules of task heads.

        `width` is the hidden size, which the default classifier reads; parts that are not given get defaults.
        """
        self.pooler, self.tagger = parts.get("pooler", nn.Identity), parts.get("tagger", nn.Identity)
        self.classifier = parts.get("classifier", partial(OutputLinear, width))
        self.answerer = parts.get("answerer", self.tagger)
        self.choice_pooler = parts.get("choice_pooler", self.pooler)
        self.choice_output = parts.get("choice_output", self.classifier)
        self.detection_activation = parts.get("detection_activation", F.gelu)

    def copy_parts(self, other: TaskHeadParts) -> None:
        """Copy the functions that create task-head modules, such as poolers, from another backbone."""
        self.pooler, self.classifier = other.pooler, other.classifier
        self.tagger, self.answerer = other.tagger, other.answerer
        self.choice_pooler, self.choice_output = other.choice_pooler, other.choice_output
        self.detection_activation = other.detection_activation


class LayeredBackbone(TaskHeadParts, nn.Module):
    """The base class of backbones with a list of layers above their embeddings."""

    embed: Any
    layers: nn.ModuleList

    @property
    def width(self) -> int:
        """The width of the hidden states."""
        return int(self.embed.width)

    @property
    def depth(self) -> int:
        """The number of layers above the embeddings; in an encoder-decoder, the number of decoder layers."""
        return len(self.layers)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers, from the embeddings to the top, as (name, modules) pairs, for layer-wise training."""
        return [("embed", [self.embed]), *((f"layer {i}", [layer]) for i, layer in enumerate(self.layers))]


class Backbone(Protocol):
    """A network that turns token sequences, concatenated without padding, into hidden states."""

    embed: Embeddings
    vocabulary_head: Callable[[], nn.Module]  # makes the head from hidden states to logits over the vocabulary
    pooler: Callable[[], nn.Module]  # this and the following: see `TaskParts`
    classifier: Callable[[int], nn.Module]
    tagger: Callable[[], nn.Module]
    answerer: Callable[[], nn.Module]
    choice_pooler: Callable[[], nn.Module]
    choice_output: Callable[[int], nn.Module]
    detection_activation: Activation

    @property
    def width(self) -> int:
        """The width of the hidden states."""

    @property
    def depth(self) -> int:
        """The number of layers after the embeddings."""

    @property
    def max_positions(self) -> int | None:
        """The maximum sequence length, or None if sequences may have any length."""

    def __call__(self, *packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput: ...

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers, from the embeddings to the top, as (name, modules) pairs, for layer-wise training."""


def selected_layers(keep: LayerSelection, layers: int) -> set[int]:
    """Return the layer indices, from 0 (embeddings) to `layers`, that `keep` selects.

    `keep` is "last", "all", or a list of indices; negative indices count from the top layer.

    >>> sorted(selected_layers([0, -1], 12))
    [0, 12]
    """
    if keep == "last":
        return {layers}
    if keep == "all":
        return set(range(layers + 1))
    for layer in keep:
        if not -layers - 1 <= int(layer) <= layers:
            raise PretuneError(
                f"layer {layer} does not exist; choose a layer from 0 (the embeddings) to {layers} (the top), or from "
                f"-1 (the top) to {-layers - 1}"
            )
    return {int(layer) % (layers + 1) for layer in keep}
