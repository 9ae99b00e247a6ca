"""A Transformer with a stream for text and one for regions of images, which exchange information by co-attention (ViLBERT).

Some layers of the text stream run first. Then bridges between the streams alternate with layers of both. At a bridge, each
stream attends to the states of the other: its queries are its own, keys and values those of the other stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, TaskParts, selected_layers
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import cross_layout, self_layout
from pretune.nn.blocks import TransformerLayer
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.embedding.region_embedding import RegionEmbedding
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.pooling import pool
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError
from pretune.text.corpus.region_files import WHOLE_IMAGE


@dataclass
class TwoStreamOutput(BackboneOutput):
    """The output of a two-stream backbone: hidden states of the text in `layers`, and of the regions in `regions`."""

    regions: Tensor | None = None  # (regions, region width) hidden states after the last layer


class CoAttentionBridge(nn.Module):
    """A pair of layers, one per stream, whose attention is to the states of the other stream before the bridge."""

    def __init__(self, text: TransformerLayer, regions: TransformerLayer) -> None:
        super().__init__()
        self.text, self.regions = text, regions

    def forward(
        self, text: Tensor, regions: Tensor, text_context: AttentionContext, region_context: AttentionContext
    ) -> tuple[Tensor, Tensor]:
        """Return new states of the text, (n, width), and of the regions, (m, region width), from those of both."""
        return (
            self.text(text, replace(text_context, source=regions)),
            self.regions(regions, replace(region_context, source=text)),
        )


class TwoStreams(LayeredBackbone):
    """A text stream of `layers` and a stream of `region_layers`, connected by `bridges`."""

    def __init__(
        self,
        embed: Embeddings,
        embed_regions: RegionEmbedding,
        layers: Iterable[nn.Module],
        region_layers: Iterable[nn.Module],
        bridges: Iterable[CoAttentionBridge],
        *,
        text_before: Sequence[int],
        regions_before: Sequence[int],
        vocabulary_head: Callable[[], nn.Module],
        region_head: Callable[[], nn.Module],
        pair_pooler: Callable[[], PairPooler],
        **parts: Unpack[TaskParts],
    ) -> None:
        """Assemble a two-stream backbone.

        Bridge i runs after the first text_before[i] layers of the text stream and the first regions_before[i] layers of
        the other stream. `vocabulary_head` creates the language-model head, `region_head` a head that predicts the
        classes of regions, and `pair_pooler` one that pools a text and its image into one vector.
        """
        super().__init__()
        self.embed, self.embed_regions = embed, embed_regions
        self.layers, self.region_layers = nn.ModuleList(layers), nn.ModuleList(region_layers)
        self.bridges = nn.ModuleList(bridges)
        self.text_before, self.regions_before = [*text_before], [*regions_before]
        check_order(self.text_before, len(self.layers), "t_biattention_id", "num_hidden_layers")
        check_order(self.regions_before, len(self.region_layers), "v_biattention_id", "v_num_hidden_layers")
        self.vocabulary_head, self.region_head, self.pair_pooler = vocabulary_head, region_head, pair_pooler
        self.set_task_parts(embed.width, **parts)

    @property
    def max_positions(self) -> int | None:
        """The maximum length of texts, or None if they may have any length."""
        return self.embed.positions.max_positions if isinstance(self.embed.positions, LearnedPositions) else None

    def forward(
        self, text: Packed, regions: Packed | None = None, state: None = None, keep: LayerSelection = "last"
    ) -> TwoStreamOutput:
        """Return the hidden states of texts (tokens, width) after the layers in `keep`, and those of regions.

        Image i of `regions` belongs to text i; without images, each text has an image of which nothing is known.
        `state` must be None.
        """
        wanted = selected_layers(keep, self.depth)
        regions = unknown_images(text, self.embed_regions) if regions is None else regions
        x, y = self.embed(text), self.embed_regions(regions)
        contexts = (
            AttentionContext(self_layout(text), text.pattern, source_layout=cross_layout(text, regions)),
            AttentionContext(self_layout(regions), source_layout=cross_layout(regions, text)),
        )
        layers = [x] if 0 in wanted else []
        for depth, (part, number) in enumerate(self.schedule()):
            # Each depth gets its own context: a layer recomputed in the backward pass must find the same one again.
            text_context, region_context = (replace(context, depth=depth) for context in contexts)
            match part:
                case "text":
                    x = self.layers[number](x, text_context)
                    if number + 1 in wanted:
                        layers.append(x)
                case "regions":
                    y = self.region_layers[number](y, region_context)
                case "bridge":
                    x, y = self.bridges[number](x, y, text_context, region_context)
        return TwoStreamOutput(layers, regions=y)

    def schedule(self) -> list[tuple[str, int]]:
        """Return the layers in the order in which they run, as ("text", i), ("regions", i) or ("bridge", i)."""
        steps: list[tuple[str, int]] = []
        text = regions = 0
        ends = zip([*self.text_before, len(self.layers)], [*self.regions_before, len(self.region_layers)], strict=True)
        for bridge, (last_text, last_regions) in enumerate(ends):
            steps += [("text", number) for number in range(text, last_text)]
            steps += [("regions", number) for number in range(regions, last_regions)]
            steps += [("bridge", bridge)] if bridge < len(self.bridges) else []
            text, regions = last_text, last_regions
        return steps

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers from bottom to top as (name, modules) pairs, for layer-wise training.

        The group of a text layer contains what has run since the layer before: bridges, and layers of regions.
        """
        groups: list[tuple[str, list[nn.Module]]] = [("embed", [self.embed, self.embed_regions])]
        since: list[nn.Module] = []
        for part, number in self.schedule():
            modules = {"text": self.layers, "regions": self.region_layers, "bridge": self.bridges}[part]
            since.append(modules[number])
            if part == "text":
                groups.append((f"layer {number}", since))
                since = []
        groups[-1][1].extend(since)
        return groups

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations of the text stream to `saved`, and those of the other stream as those of its source."""
        saved.source = SavedActivations(self.embed_regions.width, saved.recompute)
        for part in (self.embed_regions, *self.region_layers, *(bridge.regions for bridge in self.bridges)):
            saved.source.add(part)
        saved.unknown += saved.source.unknown
        for part in (self.embed, *self.layers, *(bridge.text for bridge in self.bridges)):
            saved.add(part)


class PairPooler(nn.Module):
    """Pools a text and its image into one vector: the product of the pooled text and the pooled regions (ViLBERT).

    `text` and `regions` map the state of the first token, or of the image as a whole, to vectors of the same width.
    """

    def __init__(self, text: nn.Module, regions: nn.Module, width: int) -> None:
        super().__init__()
        self.text, self.regions, self.width = text, regions, width

    def forward(self, states: TwoStreamOutput, text: Packed, regions: Packed) -> Tensor:
        """Return one vector per pair of a text and an image, (sequences, width)."""
        assert states.regions is not None
        pooled: Tensor = self.text(pool(states.last, text, "cls")) * self.regions(pool(states.regions, regions, "cls"))
        return pooled


def check_order(before: Sequence[int], layers: int, key: str, count: str) -> None:
    """Raise an error unless `before`, the layers before each bridge, are in order and at most `layers`.

    `key` and `count` are the keys of config.json with these numbers.
    """
    if sorted(before) != [*before] or not all(0 <= number <= layers for number in before):
        raise PretuneError(
            f"{key} is {[*before]}, but must be increasing numbers from 0 to {layers}, the {count}; correct it in config.json"
        )


def unknown_images(text: Packed, embed: RegionEmbedding) -> Packed:
    """Return one image per text of which nothing is known: the image as a whole, with the features 0."""
    count = text.offsets.shape[0] - 1
    device = text.offsets.device
    whole = torch.tensor(WHOLE_IMAGE, device=device)
    return Packed(
        ids=torch.zeros(count, dtype=torch.long, device=device),
        offsets=torch.arange(count + 1, dtype=torch.int32, device=device),
        positions=torch.zeros(count, dtype=torch.long, device=device),
        max_length=1,
        columns={
            "features": torch.zeros(count, embed.features.in_features, device=device),
            "locations": whole.expand(count, -1),
        },
        host_offsets=None if text.host_offsets is None else torch.arange(count + 1).numpy(),
    )


def require_two_streams(name: str, backbone: object) -> TwoStreams:
    """Return a backbone that reads images; raise an error that names the objective `name` for any other one."""
    if not isinstance(backbone, TwoStreams):
        raise PretuneError(f"the objective {name!r} reads regions of images, and this model does not; use vilbert")
    return backbone
