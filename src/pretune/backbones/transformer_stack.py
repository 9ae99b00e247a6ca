"""A Transformer stack over one packed batch: BERT with full attention, GPT with causal attention, XLNet with memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from torch import Tensor, nn

from pretune.backbones.backbone import (
    BackboneOutput,
    DeferredOutput,
    LayeredBackbone,
    LayerSelection,
    TaskParts,
    defers_top_layer,
    selected_layers,
)
from pretune.backbones.segment_memory import MemoryContext, SegmentMemory, within_documents
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import self_layout
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed


class TransformerStack(LayeredBackbone):
    """A backbone of embeddings, a stack of Transformer layers, and a final norm if the layers are pre-norm."""

    def __init__(
        self,
        embed: Embeddings,
        layers: Iterable[nn.Module],
        *,
        score: nn.Module | None = None,
        distances: nn.Module | None = None,
        norm: nn.Module | None = None,
        vocabulary_head: Callable[[], nn.Module],
        order: Sequence[int] | None = None,
        memory: int = 0,
        **parts: Unpack[TaskParts],
    ) -> None:
        """Assemble a Transformer stack; `vocabulary_head` creates its language-model head.

        `score` modifies the attention logits of all layers (T5's relative position bias); `distances` are relative
        position embeddings that all layers share (DeBERTa); `order` has the index of the layer that runs at each depth,
        if layers are shared (ALBERT); `memory` is the number of tokens that each layer remembers (Transformer-XL).
        """
        super().__init__()
        self.embed = embed
        self.score, self.distances = score, distances
        self.layers = nn.ModuleList(layers)
        self.order = range(len(self.layers)) if order is None else order
        self.norm = norm if norm is not None else nn.Identity()
        self.vocabulary_head, self.memory = vocabulary_head, memory
        self.set_task_parts(embed.width, **parts)

    @property
    def max_positions(self) -> int | None:
        """The maximum sequence length, or None if sequences may have any length."""
        return self.embed.positions.max_positions if isinstance(self.embed.positions, LearnedPositions) else None

    @property
    def stack(self) -> list[nn.Module]:
        """The layers in the order in which they run; a shared layer occurs several times."""
        return [self.layers[number] for number in self.order]

    @property
    def depth(self) -> int:
        """The number of layers after the embeddings, with shared layers counted each time they run."""
        return len(self.order)

    def forward(
        self, packed: Packed, state: SegmentMemory | KVCache | None = None, keep: LayerSelection = "last"
    ) -> BackboneOutput:
        """Return the hidden states (tokens, width) of the layers in `keep`; `state` is a memory or key-value cache."""
        stack = self.stack
        wanted = selected_layers(keep, len(stack))
        x = self.embed(packed)
        cache = state if isinstance(state, KVCache) else None
        context = AttentionContext(
            self_layout(packed) if cache is None else cache.layout(packed), packed.pattern, cache=cache
        )
        recall = None
        # Stateful batches have the column `document_start`; the first of them comes without a memory.
        if self.memory and not isinstance(state, KVCache) and (state is not None or "document_start" in packed.columns):
            recall = MemoryContext(packed, context.layout, state, self.memory)
            context = AttentionContext(recall.layout, recall.pattern(packed.pattern))
        elif cache is None and "document_start" in packed.columns:
            context = within_documents(context.layout, packed.pattern)
        if self.score is not None:
            context.score_mod = self.score(x, context.layout)
        if self.distances is not None:
            context.distances = self.distances().to(x.dtype)
        layers = [x] if 0 in wanted else []
        for number, layer in enumerate(stack, 1):
            # Each depth gets its own context: a layer recomputed in the backward pass must find the same one again.
            key_states = recall.key_states(number - 1, x) if recall is not None else None
            own = replace(context, depth=number - 1, key_states=key_states)
            if number == len(stack) and keep == "last" and recall is None and cache is None and defers_top_layer(x):
                return DeferredOutput(partial(self.top, layer, x, own))
            x = layer(x, own)
            if number == len(stack):
                x = self.norm(x)
            if number in wanted:
                layers.append(x)
        return BackboneOutput(layers, recall.next() if recall is not None else cache)

    def top(self, layer: nn.Module, x: Tensor, context: AttentionContext, at: Tensor | None) -> Tensor:
        """Return the output of the top layer, normalized, for the tokens with the indices `at`, or for all tokens."""
        return self.norm(layer(x, context if at is None else replace(context, at=at)))  # type: ignore[no-any-return]

    def restore_state(self, tensors: dict[str, Tensor]) -> SegmentMemory:
        """Rebuild the segment memory from the tensors of a checkpoint."""
        return SegmentMemory.from_tensors(tensors)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers, from the embeddings to the top, as (name, modules) pairs, for layer-wise training."""
        groups = super().groups()
        groups[0][1].extend(part for part in (self.score, self.distances) if part is not None)
        groups[-1][1].append(self.norm)
        return groups

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that the stack keeps for the backward pass to `saved`; a shared layer keeps its own per depth."""
        for part in (self.embed, self.score, self.distances, *self.stack, self.norm):
            if part is not None:
                saved.add(part)
