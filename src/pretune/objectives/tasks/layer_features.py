"""Tasks on features of all layers instead of the last one: feature-based transfer and probing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from pretune.backbones.backbone import Backbone, BackboneOutput
from pretune.nn.layer_mixing import LayerFeatures, TopLayers
from pretune.nn.linear import Linear
from pretune.objectives.objective import Loss
from pretune.objectives.task import Task
from pretune.objectives.wrappers import WrappedBackbone, WrappedTask
from pretune.packed import Batch, Packed
from pretune.runtime.errors import PretuneError


class FeatureBackbone(WrappedBackbone):
    """A wrapper around a backbone that returns a combination of all layers, such as a learned mix."""

    def __init__(self, backbone: Backbone, features: LayerFeatures) -> None:
        self.backbone = backbone
        self.features = features
        self.width = features.width
        self.set_task_parts(features.width, classifier=partial(Linear, features.width))

    def __call__(self, *packed: Packed, **options: Any) -> BackboneOutput:
        """Run the backbone and return an output with one layer, (tokens, width): the combination of all layers."""
        if self.features.layers == "cove":  # the features of the encoder alone
            states = self.backbone.encoder(packed[0], **options | {"keep": self.features.keep})
            return BackboneOutput([self.features(states.layers, packed[0])], states.state)
        states = self.backbone(*packed, **options | {"keep": self.features.keep})
        return BackboneOutput([self.features(states.layers, packed[-1])], states.state)


class LayerFeaturesHead(nn.Module):
    """A head that has the parameters with which layers are combined, and a task's own head, which reads the result."""

    def __init__(self, features: LayerFeatures, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head


@dataclass(frozen=True)
class OnLayerFeatures(WrappedTask):
    """A wrapper around a task that lets its head read a combination of all layers instead of the last layer.

    `layers` is the combination, such as mix or layers(4,8); `top` are layers between it and the head, such as bilstm.
    """

    task: Task
    layers: str  # one of Layers; elmo may be followed by a width
    top: TopLayers = ""

    @property
    def reads_several_layers(self) -> bool:
        """Return whether the head reads other layers than the last one."""
        return self.layers != "last"

    @property
    def reads_word_vectors(self) -> bool:
        """Return whether the head reads word vectors beside hidden states."""
        return self.layers.startswith(("elmo", "cove"))

    def finish(self, head: Any) -> Self:
        """Fold statistics of the labels, such as their mean, into a trained head, as the wrapped task does.

        Return a copy of the wrapper with the task that no longer has these statistics.
        """
        return self.with_task(self.task.finish(head.head))

    def begin(self, head: Any) -> None:
        """Undo `finish` before training continues: call `begin` of the wrapped task on its part of a head."""
        self.task.begin(head.head)

    def head(self, backbone: Backbone) -> nn.Module:
        """Build the module that combines the backbone's layers, and the wrapped task's head on top of it."""
        network: Any = backbone
        if self.layers == "cove":
            if not hasattr(network, "encoder"):
                raise PretuneError(
                    "'cove' features need the encoder of a translation model; choose a model that was trained with the objective 'translate'"
                )
            network = network.encoder
        # An ONNX graph has no embeddings to read, and most combinations of layers need none.
        embed = network.embed if self.reads_word_vectors else None
        features = LayerFeatures(
            network.width,
            network.depth,
            self.layers,
            self.top,
            vocabulary=0 if embed is None else embed.vocabulary,
            words=0 if embed is None else embed.width,
            mixed_widths=len(set(getattr(network, "widths", ()))) > 1,
        )
        return LayerFeaturesHead(features, self.task.head(FeatureBackbone(backbone, features)))  # type: ignore[arg-type]

    def outputs(self, head: Any, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the outputs of the wrapped task's head on the combined layers for a batch."""
        return self.task.outputs(head.head, FeatureBackbone(backbone, head.features), batch)  # type: ignore[arg-type]

    def loss(self, head: Any, backbone: Backbone, batch: Batch) -> Loss:
        """Return the loss of the wrapped task on the combined layers for a batch."""
        return self.task.loss(head.head, FeatureBackbone(backbone, head.features), batch)  # type: ignore[arg-type]
