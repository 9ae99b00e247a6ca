"""A reversible residual stack, whose activations are recomputed in the backward pass (Reformer)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, selected_layers
from pretune.backbones.segment_memory import within_documents
from pretune.nn.attention.kv_cache import KVCache
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.query_key_layout import self_layout, token_layout
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.reversible import ReversibleLayer, run_reversible
from pretune.packed import Packed, pack
from pretune.text.spans import span_indices


class ReversibleBackbone(LayeredBackbone):
    """A backbone of reversible layers with two residual streams, which are concatenated and normalized at the end."""

    sharded_together = True  # the layers are recomputed together, so they must not be sharded one by one

    def __init__(
        self,
        embed: Embeddings,
        layers: Iterable[ReversibleLayer],
        *,
        norm: nn.Module,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module],
    ) -> None:
        """Assemble a reversible backbone; `norm` normalizes the concatenation of its two residual streams."""
        super().__init__()
        self.embed, self.norm = embed, norm
        self.layers = nn.ModuleList(layers)
        self.vocabulary_head = vocabulary_head
        self.set_task_parts(self.width, pooler=pooler)

    @property
    def width(self) -> int:
        """The width of the hidden states: two residual streams, concatenated."""
        return 2 * self.embed.width

    @property
    def max_positions(self) -> int | None:
        """The maximum sequence length, or None if sequences may have any length."""
        return getattr(self.embed.positions, "max_positions", None)

    def forward(self, packed: Packed, state: KVCache | None = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the hidden states (tokens, width) of the layers that `keep` selects, for the tokens of `packed`.

        `state` is a cache of earlier tokens, which are computed again, since LSH attention sorts all tokens of a
        sequence.
        """
        newest = None
        if state is not None:
            packed, newest = _with_cached_tokens(packed, state)
        wanted = selected_layers(keep, len(self.layers))
        x = self.embed(packed)
        context = AttentionContext(self_layout(packed), packed.pattern)
        if "document_start" in packed.columns:
            context = within_documents(context.layout, packed.pattern)
        contexts = [replace(context, depth=depth) for depth in range(len(self.layers))]
        layers = [torch.cat([x, x], 1)] if 0 in wanted else []
        layers += [y.to(x.dtype) for y in run_reversible(list(self.layers), contexts, x, wanted)]  # type: ignore[arg-type]
        if len(self.layers) in wanted:
            layers[-1] = self.norm(layers[-1])
        return BackboneOutput(layers if newest is None else [layer[newest] for layer in layers], state)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers, from the embeddings to the top, as (name, modules) pairs, for layer-wise training."""
        groups = super().groups()
        groups[-1][1].append(self.norm)
        return groups


def _with_cached_tokens(packed: Packed, cache: KVCache) -> tuple[Packed, Tensor]:
    """Add the tokens of `packed` to the cache, and return all cached tokens as a packed batch.

    Also return the indices of the new tokens in that batch. All tokens are needed, since LSH attention sorts them.
    """
    side, slots = token_layout(packed), cache.target_slots
    slots.fill(replace(side, columns=side.columns | {"id": packed.ids}))
    rows = span_indices(np.arange(len(slots.used)) * slots.slots, slots.used)
    columns = {name: column.flatten().cpu().numpy()[rows] for name, column in slots.columns.items()}
    ids, positions = columns.pop("id"), columns.pop("position")
    whole = pack(ids, slots.used, positions=positions, columns=columns, pattern=packed.pattern).to(packed.ids.device)
    return whole, torch.searchsorted(torch.from_numpy(rows).to(slots.newest.device), slots.newest)
