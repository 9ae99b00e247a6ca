"""A reversible stack over one packed stream: Reformer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Keep, States, TaskParts, kept
from pretune.backbones.encoder import with_documents
from pretune.nn.attention.kv_cache import Cache
from pretune.nn.attention.multi_head import Flow
from pretune.nn.attention.packed_layout import Layout, self_layout, side_of
from pretune.nn.attention.patterns import document, visible
from pretune.nn.embeddings import Embeddings
from pretune.nn.reversible import ReversibleLayer, run_reversible
from pretune.packed import Packed, pack


class Reversible(TaskParts, nn.Module):
    """Embeddings, which are both streams at first, layers, and a norm of both streams side by side."""

    whole = True  # its layers compute themselves again all together, so that they are not sharded one by one

    def __init__(
        self,
        embed: Embeddings,
        layers: Iterable[ReversibleLayer],
        *,
        norm: nn.Module,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module],
    ) -> None:
        """`norm` is as wide as both streams."""
        super().__init__()
        self.embed, self.norm = embed, norm
        self.layers = nn.ModuleList(layers)
        self.vocabulary_head = vocabulary_head
        self.set_parts(self.width, pooler=pooler)

    @property
    def width(self) -> int:
        """Width of the states: of both streams."""
        return 2 * self.embed.width

    @property
    def depth(self) -> int:
        """How many layers follow on the embeddings."""
        return len(self.layers)

    @property
    def longest(self) -> int | None:
        """Positions the model has; None: any."""
        return getattr(self.embed.positions, "longest", None)

    def forward(self, packed: Packed, carry: Cache | None = None, keep: Keep = "last") -> States:
        """States of the kept layers, (n, width) each. With a Cache, the tokens follow those it holds; all are read again."""
        newest = None
        if carry is not None:
            packed, newest = all_so_far(packed, carry)
        wanted = kept(keep, len(self.layers))
        x = self.embed(packed)
        flow = Flow(self_layout(packed), packed.pattern)
        if "fresh" in packed.columns:
            side = with_documents(flow.layout.queries)
            flow = Flow(Layout(side, side), visible(document, packed.pattern))
        flows = [replace(flow, depth=depth) for depth in range(len(self.layers))]
        layers = [torch.cat([x, x], 1)] if 0 in wanted else []
        layers += [y.to(x.dtype) for y in run_reversible(list(self.layers), flows, x, wanted)]  # type: ignore[arg-type]
        if len(self.layers) in wanted:
            layers[-1] = self.norm(layers[-1])
        return States(layers if newest is None else [layer[newest] for layer in layers], carry)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top."""
        middle = [(f"layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        middle[-1][1].append(self.norm)
        return [("embed", [self.embed]), *middle]


def all_so_far(packed: Packed, cache: Cache) -> tuple[Packed, Tensor]:
    """The new tokens move into the cache; all that it holds, end to end, and where among them the new ones are.

    A hash puts new tokens between old ones, so that nothing but the tokens themselves can be kept.
    """
    side, slots = side_of(packed), cache.own
    slots.fill(replace(side, columns=side.columns | {"id": packed.ids}))
    rows = np.concatenate([i * slots.slots + np.arange(used) for i, used in enumerate(slots.used)])
    columns = {name: column.flatten().cpu().numpy()[rows] for name, column in slots.columns.items()}
    ids, positions = columns.pop("id"), columns.pop("position")
    whole = pack(ids, slots.used, positions=positions, columns=columns, pattern=packed.pattern).to(packed.ids.device)
    return whole, torch.searchsorted(torch.from_numpy(rows).to(slots.rows.device), slots.rows)
