"""Recurrent stacks on packed streams, with state carried from batch to batch: AWD-LSTM, and each way of ELMo."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Keep, States, TaskParts, kept
from pretune.backbones.bidirectional import reversed_packed
from pretune.nn.attention.packed_layout import rearrange, reverse
from pretune.nn.compiler_exclusions import uncompiled
from pretune.nn.recurrent import Locked, RecurrentLayer, Rows, State
from pretune.packed import Packed

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class RecurrentState:
    """The state of each layer, (lanes, width) each part."""

    layers: list[State]

    def tensors(self) -> dict[str, Tensor]:
        """By name, for checkpoints."""
        return {f"{number}.{part}": x for number, state in enumerate(self.layers) for part, x in enumerate(state)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RecurrentState:
        """The inverse of `tensors`."""
        layers: dict[int, dict[int, Tensor]] = {}
        for name, tensor in tensors.items():
            number, part = map(int, name.split("."))
            layers.setdefault(number, {})[part] = tensor
        return cls([tuple(state[part] for part in sorted(state)) for _, state in sorted(layers.items())])

    def select(self, rows: Tensor) -> RecurrentState:
        """Those of some lanes."""
        return RecurrentState([tuple(part[rows] for part in state) for state in self.layers])


class RecurrentCache:
    """What a stack has read of some sequences so far, token by token: its state, and what it knows of a source."""

    def __init__(self, sequences: int, slots: int) -> None:
        """`slots`, how many tokens a sequence may come to have, take no room here."""
        self.used: Array = np.zeros(sequences, dtype=np.int64)
        self.state: RecurrentState | None = None
        self.source: Any = None  # of an encoder-decoder, with a `select` of its own

    def advance(self, packed: Packed, state: RecurrentState) -> None:
        """These tokens were read."""
        offsets = packed.offsets.cpu().numpy() if packed.host_offsets is None else packed.host_offsets
        self.used, self.state = self.used + np.diff(offsets), state

    def select(self, chosen: Array) -> None:
        """Sequence i goes on from what sequence chosen[i] is."""
        self.used = self.used[chosen]
        if self.state is not None:
            rows = torch.from_numpy(chosen).to(self.state.layers[0][0].device)
            self.state = self.state.select(rows)
        if self.source is not None:
            self.source = self.source.select(chosen)


class Recurrent(TaskParts, nn.Module):
    """Layers of LSTM or GRU cells from left to right, on an embedding.

    Sequences are lanes: each goes on from the state its predecessor in the carry left. A column `fresh` marks tokens that
    begin a document; the state is reset there, which makes what follows a row of its own.
    """

    cache = RecurrentCache  # what generation reads with

    def __init__(
        self,
        embed: Any,
        layers: Iterable[RecurrentLayer],
        *,
        dropout: float = 0.0,
        window: int | None = None,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module] = nn.Identity,
        backward: bool = False,
    ) -> None:
        """`dropout` is that of the embeddings, locked; `window` how many steps gradients go back in time (None: all);
        a `backward` stack reads every sequence from its end."""
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self.dropout = Locked(dropout)
        self.window, self.backward = window, backward
        self.vocabulary_head = vocabulary_head
        self.set_parts(self.width, pooler=pooler)
        self.longest: int | None = None

    @property
    def width(self) -> int:
        """Width of the top layer's states."""
        return self.widths[-1]

    @property
    def widths(self) -> list[int]:
        """Of the embeddings, and of each layer."""
        cells: list[Any] = [layer.cells for layer in self.layers]
        return [int(self.embed.width), *(one.outputs for one in cells)]

    @property
    def depth(self) -> int:
        """How many layers follow on the embeddings."""
        return len(self.layers)

    @uncompiled  # how rows are laid out depends on the lengths, which differ from batch to batch
    def forward(
        self, packed: Packed, carry: RecurrentState | RecurrentCache | None = None, keep: Keep = "last"
    ) -> States:
        """States of the kept layers, (n, width of the layer) each, and the state at each lane's end."""
        before = carry.state if isinstance(carry, RecurrentCache) else carry
        if not len(packed):  # nothing but texts without tokens
            x = self.embed(packed)
            return States([x.new_zeros(0, self.widths[number]) for number in sorted(kept(keep, self.depth))], carry)
        layers, end = self.states_and_end(packed, before, keep)
        state = RecurrentState([tuple(part.detach() for part in parts) for parts in end.layers])
        if not isinstance(carry, RecurrentCache):
            return States(layers, state)
        carry.advance(packed, state)
        return States(layers, carry)

    def states_and_end(
        self, packed: Packed, before: RecurrentState | None = None, keep: Keep = "last"
    ) -> tuple[list[Tensor], RecurrentState]:
        """The kept layers, and the state at each lane's end, through which gradients go."""
        if not self.backward:
            return self.run(self.embed(packed), packed, before, keep)
        turn = reverse(packed)
        turned = reversed_packed(packed, turn)
        layers, end = self.run(self.embed(turned), turned, before, keep)
        return [rearrange(x, turn) for x in layers], end

    def run(
        self, x: Tensor, packed: Packed, before: RecurrentState | None, keep: Keep
    ) -> tuple[list[Tensor], RecurrentState]:
        """The layers alone, on vectors (n, width of the embeddings) of the tokens."""
        wanted, rows = kept(keep, self.depth), Rows.make(packed)
        lanes = packed.offsets.shape[0] - 1
        layers = [x] if 0 in wanted else []
        x = self.dropout(rows.lay(x), rows)
        states: list[State] = []
        for number, layer in enumerate(self.layers):
            initial = None if before is None else rows.initial(before.layers[number])
            x, state = layer(x, rows, initial, self.window)
            states.append(rows.final(state, lanes))
            if number + 1 in wanted:
                layers.append(rows.back(x))
        return layers, RecurrentState(states)

    def restore_carry(self, tensors: dict[str, Tensor]) -> RecurrentState:
        """Its state, from a checkpoint."""
        return RecurrentState.from_tensors(tensors)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top."""
        return [("embed", [self.embed]), *((f"layer {i}", [layer]) for i, layer in enumerate(self.layers))]
