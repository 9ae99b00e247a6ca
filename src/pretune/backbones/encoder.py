"""A stack of layers over one packed stream: BERT with `full` attention, GPT with `causal`, XLNet with memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Keep, States, TaskParts, kept
from pretune.nn.attention.kv_cache import Cache
from pretune.nn.attention.multi_head import Flow
from pretune.nn.attention.packed_layout import Layout, Side, memory_side, self_layout
from pretune.nn.attention.patterns import Pattern, document, visible
from pretune.nn.embeddings import Embeddings
from pretune.nn.positional_encoding import Learned
from pretune.packed import Packed


class Encoder(TaskParts, nn.Module):
    """Embeddings, layers, and a norm at the end where layers are pre-norm."""

    def __init__(
        self,
        embed: Embeddings,
        layers: Iterable[nn.Module],
        *,
        score: nn.Module | None = None,
        distances: nn.Module | None = None,
        norm: nn.Module | None = None,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module],
        classifier: Callable[[int], nn.Module] | None = None,
        tagger: Callable[[], nn.Module] = nn.Identity,
        answerer: Callable[[], nn.Module] | None = None,
        choice_pooler: Callable[[], nn.Module] | None = None,
        choice_output: Callable[[int], nn.Module] | None = None,
        order: Sequence[int] | None = None,
        memory: int = 0,
    ) -> None:
        """`score` bends the logits of all layers (T5); `distances` gives them vectors of distances (DeBERTa).

        `classifier`: how a sequence's vector becomes one logit per class, if not by a linear map with biases. `tagger`: what
        lies between a token's state and its tag (ModernBERT). `answerer`: what lies between a token's state and the logits of
        answers, if not the tagger (BigBird). `choice_pooler` and `choice_output`: the pooler and the output of multiple
        choice, if not those of classification (BigBird, XLM, GPT-2).

        `order`: which layer runs at each depth, where layers are shared between depths (ALBERT).

        `memory`: how many tokens of the segment before each layer remembers (Transformer-XL).
        """
        super().__init__()
        self.embed = embed
        self.score, self.distances = score, distances
        self.layers = nn.ModuleList(layers)
        self.order = range(len(self.layers)) if order is None else order
        self.norm = norm if norm is not None else nn.Identity()
        self.vocabulary_head, self.memory = vocabulary_head, memory
        self.set_parts(
            embed.width,
            pooler=pooler,
            classifier=classifier,
            tagger=tagger,
            answerer=answerer,
            choice_pooler=choice_pooler,
            choice_output=choice_output,
        )

    @property
    def width(self) -> int:
        """Width of the states."""
        return self.embed.width

    @property
    def longest(self) -> int | None:
        """Positions the model has; None: any."""
        return self.embed.positions.longest if isinstance(self.embed.positions, Learned) else None

    @property
    def stack(self) -> list[nn.Module]:
        """The layers as they run, shared ones as often as they do."""
        return [self.layers[number] for number in self.order]

    @property
    def depth(self) -> int:
        """How many layers follow on the embeddings."""
        return len(self.order)

    def forward(self, packed: Packed, carry: Memory | Cache | None = None, keep: Keep = "last") -> States:
        """States of the kept layers, (n, width) each. With a Cache, the tokens follow those it holds."""
        stack = self.stack
        wanted = kept(keep, len(stack))
        x = self.embed(packed)
        cache = carry if isinstance(carry, Cache) else None
        flow = Flow(self_layout(packed) if cache is None else cache.layout(packed), packed.pattern, cache=cache)
        recall = None
        # Lanes, which have a column of beginnings, are what goes on in the next batch; the first ones have no carry yet.
        if self.memory and not isinstance(carry, Cache) and (carry is not None or "fresh" in packed.columns):
            recall = Recall(packed, flow.layout, carry, self.memory)
            flow = Flow(recall.layout, recall.pattern(packed.pattern))
        elif cache is None and "fresh" in packed.columns:
            side = with_documents(flow.layout.queries)
            flow = Flow(Layout(side, side), visible(document, packed.pattern))
        if self.score is not None:
            flow.bend = self.score(x, flow.layout)
        if self.distances is not None:
            flow.distances = self.distances().to(x.dtype)
        layers = [x] if 0 in wanted else []
        for number, layer in enumerate(stack, 1):
            # A flow for each depth: a layer that computes itself again in the backward must find what it found before.
            context = recall.context(number - 1, x) if recall is not None else None
            x = layer(x, replace(flow, depth=number - 1, context=context))
            if number == len(stack):
                x = self.norm(x)
            if number in wanted:
                layers.append(x)
        return States(layers, recall.next() if recall is not None else cache)

    def restore_carry(self, tensors: dict[str, Tensor]) -> Memory:
        """What it remembers, from a checkpoint."""
        return Memory.from_tensors(tensors)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top; layers that are shared count once."""
        middle = [(f"layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        middle[-1][1].append(self.norm)
        lowest = [part for part in (self.embed, self.score, self.distances) if part is not None]
        return [("embed", lowest), *middle]


def with_documents(side: Side) -> Side:
    """With a column of numbers that rise where documents begin, along each sequence."""
    return replace(side, columns=side.columns | {"document": side.columns["fresh"].long().cumsum(0)})


@dataclass
class Memory:
    """What Transformer-XL remembers: the last states of every layer's input, in fixed slots, the newest last."""

    states: list[Tensor]  # (sequences, slots, width) for each layer
    used: Tensor  # (sequences,) slots filled

    def tensors(self) -> dict[str, Tensor]:
        """By name, for checkpoints."""
        return {f"states.{i}": x for i, x in enumerate(self.states)} | {"used": self.used}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Memory:
        """The inverse of `tensors`."""
        return cls([tensors[f"states.{i}"] for i in range(len(tensors) - 1)], tensors["used"])


class Recall:
    """Memory at work during one forward: keys are the remembered tokens followed by the sequence's own.

    Nobody looks across the beginning of a document, and nothing from before the last one is remembered.
    """

    def __init__(self, packed: Packed, layout: Layout, memory: Memory | None, slots: int) -> None:
        queries, self.slots = layout.queries, slots
        self.sequences = packed.offsets.shape[0] - 1
        self.memory = memory
        used = packed.ids.new_zeros(self.sequences) if memory is None else memory.used
        size = self.sequences * slots
        # Of segment 0, no document's beginning; whatever the order of prediction, before all of it.
        remembered = {name: column.new_zeros(size) for name, column in queries.columns.items()}
        if "order" in remembered:
            remembered["order"] -= 1
        # The positions right before the sequence.
        first = queries.columns["position"][queries.offsets[:-1].long().clamp(max=len(queries) - 1)]
        remembered["position"] = (first[:, None] + torch.arange(-slots, 0, device=first.device)).flatten()
        keys, self.index = memory_side(queries, slots, used, remembered)
        if "fresh" in keys.columns:
            keys = with_documents(keys)
            own = torch.arange(len(queries), device=first.device) + (queries.sequence.long() + 1) * slots
            queries = replace(queries, columns=queries.columns | {"document": keys.columns["document"][own]})
        self.layout = Layout(queries, keys)
        self.inputs: list[Tensor] = []

    def pattern(self, batch: Pattern | None) -> Pattern:
        """The batch's pattern, no look at slots that are not filled, none across documents."""
        pattern = Pattern("remembered", lambda query, key: key["remembered"] > 0)
        if "document" in self.layout.keys.columns:
            pattern = pattern & document  # not `&=`, which compilers of older torch cannot read
        return visible(pattern, batch)

    def context(self, layer: int, x: Tensor) -> Tensor:
        """Rows behind the keys: slots, then the layer's input, in the order of the key side."""
        if self.memory is None:
            slots = x.new_zeros(self.sequences * self.slots, x.shape[1])
        else:
            slots = self.memory.states[layer].flatten(0, 1).to(x.dtype)
        rows = torch.cat([slots, x])[self.index]
        self.inputs.append(rows.detach())
        return rows

    def next(self) -> Memory:
        """What the next batch remembers: the last content tokens of slots and sequence, if of the document that goes on."""
        keys = self.layout.keys
        content, sequence = keys.columns["remembered"], keys.sequence.long()
        if "stream" in keys.columns:
            content = content & (keys.columns["stream"] == 0)
        if "document" in keys.columns:
            last = keys.columns["document"][(keys.offsets[1:].long() - 1).clamp(min=0)]
            content = content & (keys.columns["document"] == last[sequence])
        # The place of each content token, counted from the end of its sequence.
        running = content.long().cumsum(0)
        ends = torch.cat([running.new_zeros(1), running])[keys.offsets[1:].long()]
        place = ends[sequence] - running  # 0 for the last one
        chosen = content & (place < self.slots)
        # All others go to a slot too many, which keeps shapes what they are.
        size = self.sequences * self.slots
        slot = torch.where(chosen, sequence * self.slots + self.slots - 1 - place, size)

        def keep(rows: Tensor) -> Tensor:
            out = rows.new_zeros(size + 1, rows.shape[1]).index_copy(0, slot, rows)
            return out[:size].view(self.sequences, self.slots, -1)

        used = torch.zeros_like(keys.offsets[1:], dtype=torch.long).index_add(0, sequence, chosen.long())
        return Memory([keep(rows) for rows in self.inputs], used)
