"""A Transformer encoder and a decoder with cross-attention to it: T5, BART, translation models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, selected_layers
from pretune.backbones.second_decoder import copy_modules, replace_modules
from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import cross_layout, self_layout
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed


class EncoderDecoder(LayeredBackbone):
    """A Transformer encoder-decoder: sequence i of a target batch is decoded from sequence i of a source batch."""

    def __init__(
        self,
        encoder: TransformerStack,
        embed: Embeddings,
        layers: Iterable[nn.Module],
        *,
        score: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        """Assemble an encoder, the decoder's embeddings `embed` and the decoder's `layers`.

        `score` is the decoder's relative position bias, and `norm` the norm after its last layer (None: no such
        module).
        """
        super().__init__()
        self.encoder = encoder
        self.embed = embed
        self.score = score
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()
        self.vocabulary_head = encoder.vocabulary_head
        self.copy_parts(encoder)

    @property
    def max_positions(self) -> int | None:
        """The maximum sequence length, or None if sequences may have any length."""
        return self.encoder.max_positions

    def forward(
        self, source: Packed, target: Packed, state: KVCache | None = None, keep: LayerSelection = "last"
    ) -> BackboneOutput:
        """Encode `source`, decode `target`, and return the hidden states (tokens, width) of the decoder.

        `keep` selects decoder layers. `state` is a key-value cache of earlier target tokens, for generation.
        """
        encoded = self.encoder(source).last if state is None or state.source is None else None
        return self.decode(target, source, encoded, state, keep)

    def decode(
        self,
        target: Packed,
        source: Packed,
        encoded: Tensor | None,
        state: KVCache | None = None,
        keep: LayerSelection = "last",
    ) -> BackboneOutput:
        """Decode `target` from the encoder states `encoded` of `source`, and return the decoder's hidden states.

        `encoded` may be None if `state`, a key-value cache, already has its keys and values; `keep` selects decoder
        layers.
        """
        wanted = selected_layers(keep, len(self.layers))
        x: Tensor = self.embed(target)
        if state is None:
            layout, source_layout = self_layout(target), cross_layout(target, source)
        else:
            layout, source_layout = state.layout(target), state.source_layout(target, source)
        context = AttentionContext(layout, target.pattern, source=encoded, source_layout=source_layout, cache=state)
        if self.score is not None:
            context.score_mod = self.score(x, context.layout)
        layers = [x] if 0 in wanted else []
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, replace(context, depth=number - 1))
            if number == len(self.layers):
                x = self.norm(x)
            if number in wanted:
                layers.append(x)
        return BackboneOutput(layers, state)

    def copy_decoder(self) -> nn.ModuleDict:
        """Return a copy of the decoder's layers, without its embeddings, as a second decoder for `with_decoder`."""
        return copy_modules(self, ("layers", "norm", "score"))

    def with_decoder(self, decoder: nn.ModuleDict) -> Self:
        """Return the network with another decoder, made by `copy_decoder`; encoder and embeddings are shared."""
        return replace_modules(self, decoder)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers as (name, modules) pairs, those of the encoder first, for layer-wise training."""
        groups = [(f"encoder {name}", modules) for name, modules in self.encoder.groups()]
        groups[0][1].extend([self.embed] if self.score is None else [self.embed, self.score])
        groups += [(f"decoder layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        groups[-1][1].append(self.norm)
        return groups

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations of the decoder to `saved`, and those of the encoder as those of its source."""
        saved.source = SavedActivations(self.encoder.width, saved.recompute)
        saved.source.add(self.encoder)
        saved.unknown += saved.source.unknown
        for part in (self.embed, self.score, *self.layers):
            if part is not None:
                saved.add(part)
