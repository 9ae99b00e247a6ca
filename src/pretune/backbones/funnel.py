"""The backbone of Funnel-Transformer (Dai et al., 2020): blocks of layers over ever fewer tokens, and a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, TaskParts, selected_layers
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import full
from pretune.nn.attention.pooled_layout import SEPARATE, TokenPooling, upsample
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenLayout, token_layout
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


class FunnelBlock(nn.Module):
    """Layers over tokens of one resolution; each layer runs `repeats` times in a row, with the same parameters."""

    def __init__(self, layers: Iterable[nn.Module], repeats: int = 1) -> None:
        super().__init__()
        self.layers, self.repeats = nn.ModuleList(layers), repeats

    @property
    def stack(self) -> list[nn.Module]:
        """The layers in the order in which they run; each layer occurs `repeats` times."""
        return [layer for layer in self.layers for _ in range(self.repeats)]


class FunnelStack(LayeredBackbone):
    """Blocks of Transformer layers between which tokens are pooled, and a decoder at the resolution of the input.

    The states of pooled layers are returned for every token: each token has the state of the pooled token that stands
    for it, and tokens that pooling dropped have zeros. Without a decoder, this holds for the last layer, too.
    """

    layers: nn.ModuleList  # blocks

    def __init__(
        self,
        embed: Embeddings,
        blocks: Iterable[FunnelBlock],
        decoder: FunnelBlock | None,
        *,
        pooling: TokenPooling,
        pooling_type: Literal["mean", "max"] = "mean",
        pool_q_only: bool = True,
        vocabulary_head: Callable[[], nn.Module],
        **parts: Unpack[TaskParts],
    ) -> None:
        """Assemble a Funnel-Transformer; `decoder` is None for the encoder alone.

        `pooling_type` tells how the states of neighboring tokens are joined. With `pool_q_only`, the first layer of a
        block attends to the tokens before pooling, otherwise to pooled ones.
        """
        super().__init__()
        self.embed, self.layers, self.decoder = embed, nn.ModuleList(blocks), decoder
        self.pooling, self.pooling_type, self.pool_q_only = pooling, pooling_type, pool_q_only
        self.vocabulary_head, self.max_positions = vocabulary_head, None
        self.set_task_parts(embed.width, **parts)

    @property
    def blocks(self) -> list[FunnelBlock]:
        """The blocks of the encoder, each over half as many tokens as the one before."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def stack(self) -> list[nn.Module]:
        """The layers of encoder and decoder in the order in which they run; a repeated layer occurs several times."""
        blocks = self.blocks if self.decoder is None else [*self.blocks, self.decoder]
        return [layer for block in blocks for layer in block.stack]

    @property
    def depth(self) -> int:
        """The number of layers of encoder and decoder, with repeated layers counted each time they run."""
        return len(self.stack)

    @property
    def encoder_depth(self) -> int:
        """The number of layers of the encoder, with repeated layers counted each time they run."""
        return sum(len(block.stack) for block in self.blocks)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers, from the embeddings to the top, as (name, modules) pairs, for layer-wise training."""
        layers = list(dict.fromkeys(self.stack))
        return [("embed", [self.embed]), *((f"layer {number}", [layer]) for number, layer in enumerate(layers))]

    def forward(self, packed: Packed, state: Any = None, keep: LayerSelection = "last") -> BackboneOutput:
        """Return the hidden states (tokens, width) of the layers in `keep`; `state` is not used."""
        if packed.pattern is not None and packed.pattern != full:
            raise PretuneError(
                f"a model that pools tokens supports only full attention, but not the pattern {packed.pattern.name!r}; choose "
                "another objective, such as 'mlm', or another model"
            )
        wanted = selected_layers(keep, self.depth)
        x = self.embed(packed)
        kept = [x] if 0 in wanted else []
        side = self.layout(packed)
        number, first = 0, self.blocks[0]
        for states, index in self.encode(x, side):
            number += 1
            if number == len(first.layers):
                of_first_block = states  # as published: without repeated runs
            if number in wanted or number == self.encoder_depth:
                x = states if number <= len(first.stack) else upsample(states, index)
            if number in wanted:
                kept.append(x)
        if self.decoder is not None:
            x = x + of_first_block
            context = AttentionContext(AttentionLayout(side, side))
            for layer in self.decoder.stack:
                x = layer(x, replace(context, depth=number))
                number += 1
                if number in wanted:
                    kept.append(x)
        return BackboneOutput(kept)

    def layout(self, packed: Packed) -> TokenLayout:
        """Return the tokens of a packed batch as the queries and keys of attention.

        If the first token of a sequence is pooled separately, the column `separate` marks it.
        """
        side = token_layout(packed)
        if self.pooling.separate_cls:
            places = torch.arange(side.columns["position"].shape[0], device=side.offsets.device)
            side.columns[SEPARATE] = places == side.bounds[0]
        return side

    def encode(self, x: Tensor, side: TokenLayout) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each encoder layer, its states, and for each input token the index of its state, or -1.

        `x`, (n, width), are the embeddings of the tokens `side`.
        """
        index = torch.arange(x.shape[0], device=x.device)
        context, stride, depth = AttentionContext(AttentionLayout(side, side)), 1, 0
        for number, block in enumerate(self.blocks):
            own = context
            if number:
                pooled = self.pooling.pool(side)
                index, stride = pooled.follow(index), 2 * stride
                own = context = AttentionContext(AttentionLayout(pooled.layout, pooled.layout, stride=stride))
                if self.pool_q_only:
                    layout = AttentionLayout(pooled.layout, pooled.before, stride=stride // 2)
                    context = AttentionContext(layout, key_states=x)
                x = pooled.mean(x) if self.pooling_type == "mean" else pooled.max(x)
                side = pooled.layout
            for layer in block.stack:
                x = layer(x, replace(context, depth=depth))
                context, depth = own, depth + 1
                yield x, index
