"""Segment-level recurrence (Transformer-XL): attention to hidden states remembered from earlier segments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import Pattern, document, effective_pattern
from pretune.nn.attention.query_key_layout import AttentionLayout, TokenLayout, with_memory
from pretune.packed import Packed


def within_documents(layout: AttentionLayout, pattern: Pattern | None) -> AttentionContext:
    """Return the attention context of a layout and a pattern in which no token attends to another document."""
    side = _with_document_ids(layout.queries)
    return AttentionContext(AttentionLayout(side, side), effective_pattern(document, pattern))


def _with_document_ids(layout: TokenLayout) -> TokenLayout:
    return replace(layout, columns=layout.columns | {"document": layout.columns["document_start"].long().cumsum(0)})


@dataclass
class SegmentMemory:
    """The inputs of each layer for the last tokens of earlier segments (Transformer-XL), in a fixed number of slots."""

    states: list[Tensor]  # (sequences, slots, width) for each layer
    used: Tensor  # (sequences,) number of filled slots

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the segment memory by name, to save in a checkpoint."""
        return {f"states.{i}": x for i, x in enumerate(self.states)} | {"used": self.used}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> SegmentMemory:
        """Rebuild a segment memory from the tensors that its method `tensors` returned."""
        return cls([tensors[f"states.{i}"] for i in range(len(tensors) - 1)], tensors["used"])


class MemoryContext:
    """The attention keys of a forward pass with a segment memory: per sequence, remembered tokens, then new ones."""

    def __init__(self, packed: Packed, layout: AttentionLayout, memory: SegmentMemory | None, slots: int) -> None:
        queries, self.slots = layout.queries, slots
        self.sequences = packed.offsets.shape[0] - 1
        self.memory = memory
        used = packed.ids.new_zeros(self.sequences) if memory is None else memory.used
        size = self.sequences * slots
        # Remembered tokens have segment 0, start no document, and come first in any factorization order.
        remembered = {name: column.new_zeros(size) for name, column in queries.columns.items()}
        if "order" in remembered:
            remembered["order"] -= 1
        # Their positions come right before those of the sequence.
        first = queries.columns["position"][queries.offsets[:-1].long().clamp(max=len(queries) - 1)]
        remembered["position"] = (first[:, None] + torch.arange(-slots, 0, device=first.device)).flatten()
        keys, self.index = with_memory(queries, slots, used, remembered)
        if "document_start" in keys.columns:
            keys = _with_document_ids(keys)
            own = torch.arange(len(queries), device=first.device) + (queries.sequence.long() + 1) * slots
            queries = replace(queries, columns=queries.columns | {"document": keys.columns["document"][own]})
        self.layout = AttentionLayout(queries, keys)
        self.inputs: list[Tensor] = []

    def pattern(self, batch: Pattern | None) -> Pattern:
        """Return the attention pattern `batch` (None: full), restricted to filled memory slots and to one document.

        A token attends only to tokens of its own document.
        """
        pattern = Pattern("remembered", lambda query, key: key["remembered"] > 0)
        if "document" in self.layout.keys.columns:
            pattern = pattern & document  # not `&=`, which compilers of older torch cannot read
        return effective_pattern(pattern, batch)

    def key_states(self, layer: int, x: Tensor) -> Tensor:
        """Return the states from which a layer computes its keys, and record them for the next memory.

        For each sequence these are the remembered inputs of the layer `layer`, then the sequence's rows of its input
        `x`.
        """
        if self.memory is None:
            slots = x.new_zeros(self.sequences * self.slots, x.shape[1])
        else:
            slots = self.memory.states[layer].flatten(0, 1).to(x.dtype)
        rows = torch.cat([slots, x])[self.index]
        self.inputs.append(rows.detach())
        return rows

    def next(self) -> SegmentMemory:
        """Return the memory for the next batch: the last tokens of each sequence that belong to its last document."""
        keys = self.layout.keys
        content, sequence = keys.columns["remembered"], keys.sequence.long()
        if "stream" in keys.columns:
            content = content & (keys.columns["stream"] == 0)
        if "document" in keys.columns:
            last = keys.columns["document"][(keys.offsets[1:].long() - 1).clamp(min=0)]
            content = content & (keys.columns["document"] == last[sequence])
        # The distance of each content token from the last one of its sequence.
        running = content.long().cumsum(0)
        ends = torch.cat([running.new_zeros(1), running])[keys.offsets[1:].long()]
        distance = ends[sequence] - running
        chosen = content & (distance < self.slots)
        # All other tokens are written to one extra slot, so that no shape depends on the data.
        size = self.sequences * self.slots
        slot = torch.where(chosen, sequence * self.slots + self.slots - 1 - distance, size)

        def keep(rows: Tensor) -> Tensor:
            out = rows.new_zeros(size + 1, rows.shape[1]).index_copy(0, slot, rows)
            return out[:size].view(self.sequences, self.slots, -1)

        used = torch.zeros_like(keys.offsets[1:], dtype=torch.long).index_add(0, sequence, chosen.long())
        return SegmentMemory([keep(rows) for rows in self.inputs], used)
