"""A stack of layers over one packed stream: BERT with `full` attention, GPT with `causal`, XLNet with memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from pretune.backbones.states import Keep, States, kept
from pretune.nn.attention import Flow
from pretune.nn.cache import Cache
from pretune.nn.embeddings import Embeddings
from pretune.nn.layout import Layout, memory_side, self_layout
from pretune.nn.linear import Linear
from pretune.nn.patterns import Pattern
from pretune.nn.positions import Learned
from pretune.packed import Packed


class Encoder(nn.Module):
    """Embeddings, layers, and a norm at the end where layers are pre-norm."""

    def __init__(
        self,
        embed: Embeddings,
        layers: Iterable[nn.Module],
        *,
        score: nn.Module | None = None,
        norm: nn.Module | None = None,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module],
        classifier: Callable[[int], nn.Module] | None = None,
        order: Sequence[int] | None = None,
        memory: int = 0,
    ) -> None:
        """`score` bends the logits of all layers (T5).

        `classifier`: how a sequence's vector becomes a logit a class, if not by a linear map with biases.

        `order`: which layer runs at each depth, where layers are shared between depths (ALBERT).

        `memory`: how many tokens of the segment before each layer remembers (Transformer-XL).
        """
        super().__init__()
        self.embed = embed
        self.score = score
        self.layers = nn.ModuleList(layers)
        self.order = range(len(self.layers)) if order is None else order
        self.norm = norm if norm is not None else nn.Identity()
        self.vocabulary_head, self.pooler, self.memory = vocabulary_head, pooler, memory
        self.classifier = classifier if classifier is not None else partial(Linear, embed.width)

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

    def forward(self, packed: Packed, carry: Memory | Cache | None = None, keep: Keep = "last") -> States:
        """States of the kept layers, (n, width) each. With a Cache, the tokens follow those it holds."""
        stack = self.stack
        wanted = kept(keep, len(stack))
        x = self.embed(packed)
        cache = carry if isinstance(carry, Cache) else None
        flow = Flow(self_layout(packed) if cache is None else cache.layout(packed), packed.pattern, cache=cache)
        recall = None
        if self.memory and not isinstance(carry, Cache):
            recall = Recall(packed, flow.layout, carry, self.memory)
            flow = Flow(recall.layout, recall.pattern(packed.pattern))
        if self.score is not None:
            flow.bend = self.score(x, flow.layout)
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

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top; layers that are shared count once."""
        middle = [(f"layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        middle[-1][1].append(self.norm)
        lowest: list[nn.Module] = [self.embed] if self.score is None else [self.embed, self.score]
        return [("embed", lowest), *middle]


@dataclass
class Memory:
    """What Transformer-XL remembers: the last states of every layer's input, in fixed slots, the newest last."""

    states: list[Tensor]  # (sequences, slots, width) for each layer
    columns: dict[str, Tensor]  # (sequences, slots)
    used: Tensor  # (sequences,) slots filled

    def tensors(self) -> dict[str, Tensor]:
        """By name, for checkpoints."""
        states = {f"states.{i}": x for i, x in enumerate(self.states)}
        return states | {f"columns.{name}": column for name, column in self.columns.items()} | {"used": self.used}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Memory:
        """The inverse of `tensors`."""
        count = sum(name.startswith("states.") for name in tensors)
        columns = {name[8:]: column for name, column in tensors.items() if name.startswith("columns.")}
        return cls([tensors[f"states.{i}"] for i in range(count)], columns, tensors["used"])


class Recall:
    """Memory at work during one forward: keys are the remembered tokens followed by the sequence's own."""

    def __init__(self, packed: Packed, layout: Layout, memory: Memory | None, slots: int) -> None:
        self.layout_before, self.slots = layout, slots
        self.sequences = packed.offsets.shape[0] - 1
        device = packed.ids.device
        columns = layout.queries.columns
        if memory is None:
            empty = {n: torch.zeros(self.sequences, slots, dtype=c.dtype, device=device) for n, c in columns.items()}
            memory = Memory([], empty, torch.zeros(self.sequences, dtype=torch.long, device=device))
        self.memory = memory
        remembered = {name: memory.columns[name].flatten() for name in columns}
        # Whatever the order of prediction, what is remembered came before all of it.
        for name in ("order", "stream"):
            if name in remembered:
                remembered[name] = torch.full_like(remembered[name], -1 if name == "order" else 0)
        keys, self.index = memory_side(layout.queries, slots, memory.used, remembered)
        self.layout = Layout(layout.queries, keys)
        self.inputs: list[Tensor] = []

    def pattern(self, batch: Pattern | None) -> Pattern:
        """The batch's pattern, and no look at slots that are not filled."""
        filled = Pattern("remembered", lambda query, key: key["remembered"])
        return filled if batch is None else batch & filled

    def context(self, layer: int, x: Tensor) -> Tensor:
        """Rows behind the keys: slots, then the layer's input, in the order of the key side."""
        self.inputs.append(x.detach())
        if self.memory.states:
            slots = self.memory.states[layer].flatten(0, 1).to(x.dtype)
        else:
            slots = x.new_zeros(self.sequences * self.slots, x.shape[1])
        return torch.cat([slots, x])[self.index]

    def next(self) -> Memory:
        """What the next batch remembers: the last content tokens of slots and sequence."""
        keys = self.layout.keys
        content = keys.columns["remembered"].clone()
        if "stream" in keys.columns:
            content &= keys.columns["stream"] == 0
        # The place of each content token, counted from the end of its sequence.
        running = content.long().cumsum(0)
        ends = torch.cat([running.new_zeros(1), running])[keys.offsets[1:].long()]
        place = ends[keys.sequence.long()] - running  # 0 for the last one
        chosen = content & (place < self.slots)
        slot = keys.sequence.long() * self.slots + self.slots - 1 - place
        rows, where = chosen.nonzero().flatten(), slot[chosen]
        size = self.sequences * self.slots

        def keep(source: Tensor) -> Tensor:
            out = source.new_zeros(size, *source.shape[1:])
            out[where] = source[rows]
            return out.view(self.sequences, self.slots, *source.shape[1:])

        states = []
        for layer, x in enumerate(self.inputs):
            slots = self.memory.states[layer].flatten(0, 1).to(x.dtype) if self.memory.states else None
            before = x.new_zeros(size, x.shape[1]) if slots is None else slots
            states.append(keep(torch.cat([before, x])[self.index]))
        columns = {name: keep(column) for name, column in keys.columns.items() if name != "remembered"}
        used = torch.zeros(self.sequences, dtype=torch.long, device=content.device)
        used.index_add_(0, keys.sequence.long(), chosen.long())
        return Memory(states, columns, used)
