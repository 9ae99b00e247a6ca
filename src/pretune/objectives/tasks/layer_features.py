"""A task on other layers than the last: feature-based transfer, and probing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from pretune.backbones.backbone import States, TaskParts
from pretune.nn.layer_mixing import Features, Top
from pretune.nn.linear import Linear
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.packed import Batch, Packed
from pretune.runtime.errors import PretuneError

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone


class Seen(TaskParts):
    """A backbone whose last layer is some features of its layers."""

    def __init__(self, backbone: Backbone, features: Features) -> None:
        self.backbone: Any = backbone
        self.features = features
        self.width = features.width
        self.set_parts(features.width, classifier=partial(Linear, features.width))

    def __call__(self, *packed: Packed, **options: Any) -> States:
        if self.features.layers == "cove":  # the decoder has no part in it
            states = self.backbone.encoder(packed[0], **options | {"keep": self.features.keep})
            return States([self.features(states.layers, packed[0])], states.carry)
        states = self.backbone(*packed, **options | {"keep": self.features.keep})
        return States([self.features(states.layers, packed[-1])], states.carry)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)


class OnHead(nn.Module):
    """Features, and the task's own head."""

    def __init__(self, features: Features, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head


@dataclass(frozen=True)
class On:
    """A task whose head stands on features of all layers. Everything else is the task's own."""

    task: Task
    layers: str  # one of Layers, elmo with a width behind it
    top: Top = ""

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.task, name)

    def fit(self, examples: Any) -> Self:
        """With what the task must know of some examples."""
        return replace(self, task=self.task.fit(examples))

    def finish(self, head: Any) -> Self:
        """With what the task kept apart while it learned in its own head."""
        return replace(self, task=self.task.finish(head.head)) if hasattr(self.task, "finish") else self

    def begin(self, head: Any) -> None:
        """The reverse."""
        if hasattr(self.task, "begin"):
            self.task.begin(head.head)

    def head(self, backbone: Backbone) -> nn.Module:
        """Features and head."""
        network: Any = backbone
        if self.layers == "cove":
            if not hasattr(network, "encoder"):
                raise PretuneError(
                    "cove is the encoder of a translator; choose a model that was trained with translate"
                )
            network = network.encoder
        embed = network.embed
        features = Features(
            network.width,
            network.depth,
            self.layers,
            self.top,
            vocabulary=embed.vocabulary,
            words=embed.width,
            uneven=len(set(getattr(network, "widths", ()))) > 1,
        )
        return OnHead(features, self.task.head(Seen(backbone, features)))  # type: ignore[arg-type]

    def outputs(self, head: Any, backbone: Backbone, batch: Batch) -> Tensor:
        """The task's."""
        return self.task.outputs(head.head, Seen(backbone, head.features), batch)  # type: ignore[arg-type]

    def loss(self, head: Any, backbone: Backbone, batch: Batch) -> Loss:
        """The task's."""
        return self.task.loss(head.head, Seen(backbone, head.features), batch)  # type: ignore[arg-type]


Task.register(On)  # what it lacks, its task has; Python 3.12 would not look there
