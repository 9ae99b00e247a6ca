"""A recurrent encoder and a recurrent decoder: sequence to sequence (Sutskever et al., 2014), with attention or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Keep, States, TaskParts, kept
from pretune.backbones.bidirectional import TwoWays
from pretune.backbones.recurrent import Recurrent, RecurrentCache, RecurrentState
from pretune.nn.attention.packed_layout import cross_layout, side_of
from pretune.nn.attention.recurrent_attention import Alignment
from pretune.nn.compiler_exclusions import uncompiled
from pretune.nn.linear import Linear
from pretune.nn.recurrent import Locked, Recurrence, RecurrentLayer, Rows, State, kernel_type
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError

Array = np.ndarray[Any, np.dtype[Any]]
Readout = Literal["none", "tanh", "maxout"]


@dataclass
class Encoded:
    """What a decoder knows of its sources."""

    states: Tensor  # (m, width)
    packed: Packed
    vectors: Tensor  # (s, width) one for each source

    def select(self, chosen: Array) -> Encoded:
        """Those of some sources, in that order."""
        offsets = self.packed.offsets.cpu().numpy().astype(np.int64)
        lengths = np.diff(offsets)[chosen]
        ends = np.cumsum(lengths)
        at = np.arange(int(lengths.sum())) + np.repeat(offsets[:-1][chosen] - (ends - lengths), lengths)
        device = self.states.device
        rows, sequences = torch.from_numpy(at).to(device), torch.from_numpy(chosen).to(device)
        host = np.concatenate([[0], ends])
        packed = replace(
            self.packed.map(lambda tensor: tensor[rows] if len(tensor) == len(self.packed) else tensor),
            offsets=torch.from_numpy(host.astype(np.int32)).to(device),
            host_offsets=host,
        )
        return Encoded(self.states[rows], packed, self.vectors[sequences])


class Maxout(nn.Module):
    """The higher one of two linear maps, element by element (Goodfellow et al., 2013)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.both = Linear(inputs, 2 * outputs, stacked=2)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) → (n, outputs)."""
        first, second = self.both(x).chunk(2, -1)
        return torch.maximum(first, second)


class RecurrentEncoderDecoder(TaskParts, nn.Module):
    """Two packed streams: sequence i of the target is decoded from sequence i of the source.

    The decoder starts from the encoder's last states: its own, layer by layer, where both are alike; else from what a
    matrix makes of the encoder's vector of a sentence. It may read that vector `every` time besides, or look at all states
    through an `alignment`: with what it has read so far, all times at once (Luong et al., 2015); or, with `feed`, before
    it reads a word, so that what it saw goes into its state (Bahdanau et al., 2015), which takes one time after the other.
    """

    cache = RecurrentCache  # what generation reads with

    def __init__(
        self,
        encoder: Recurrent | TwoWays,
        embed: Any,
        layers: Iterable[RecurrentLayer],
        *,
        alignment: Alignment | None = None,
        every: bool = False,
        feed: bool = False,
        readout: int | None = None,
        dropout: float = 0.0,
        vocabulary_head: Callable[[], nn.Module],
    ) -> None:
        """`embed` and `layers` are the decoder's. `readout` is the width of a maxout between its state, what it looked at,
        what it read, and the vocabulary; without, states and what they looked at meet in a tanh, where there is attention."""
        super().__init__()
        self.encoder, self.embed = encoder, embed
        self.layers = nn.ModuleList(layers)
        self.every, self.feed = every, feed
        self.dropout = Locked(dropout)
        cells: list[Recurrence] = [layer.cells for layer in self.layers]  # type: ignore[misc]
        self.copied = isinstance(encoder, Recurrent) and _alike(encoder, cells)
        self.top = nn.ModuleDict()
        if not self.copied:
            widths = [width for one in cells for width in one.state_widths[:1]]
            self.top["bridge"] = Linear(encoder.width, sum(widths))
        if alignment is not None:
            self.top["alignment"] = alignment
        state, seen = cells[-1].outputs, encoder.width if alignment is not None else 0
        if readout is not None:
            self.top["readout"] = Maxout(state + seen + int(embed.width), readout)
        elif alignment is not None:
            self.top["readout"] = nn.Sequential(Linear(state + seen, state, bias=False), nn.Tanh())
        self._width = readout or state
        self.readout: Readout = "maxout" if readout is not None else "tanh" if alignment is not None else "none"
        self.vocabulary_head = vocabulary_head
        self.set_parts(self._width)
        self.longest: int | None = None

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        return self._width

    @property
    def depth(self) -> int:
        """How many layers of the decoder follow on its embeddings."""
        return len(self.layers)

    @property
    def alignment(self) -> Alignment | None:
        """Its attention."""
        parts: dict[str, Any] = dict(self.top.items())
        return parts.get("alignment")

    @uncompiled  # rows are laid out by their lengths
    def forward(
        self, source: Packed, target: Packed, carry: RecurrentCache | None = None, keep: Keep = "last"
    ) -> States:
        """States of the decoder's kept layers. With a cache, the target's tokens follow those it holds, and the source is
        read once."""
        if carry is not None and carry.source is not None:
            return States(self.run(target, carry.source, carry, keep)[0], carry)
        encoded, begin = self.encode(source)
        if carry is not None:
            carry.source, carry.state = encoded, begin
        return States(self.run(target, encoded, carry, keep, begin)[0], carry)

    @uncompiled
    def decode(
        self,
        target: Packed,
        source: Packed,
        encoded: Tensor,
        carry: RecurrentCache | None = None,
        keep: Keep = "last",
    ) -> States:
        """The decoder alone, on states (m, width) of the source, the last of which stands for a sentence."""
        vectors = encoded[(source.offsets[1:].long() - 1).clamp(min=0)]
        return States(self.run(target, Encoded(encoded, source, vectors), carry, keep)[0], carry)

    def align(self, source: Packed, target: Packed) -> Tensor:
        """(n, longest source) how much each token of the target, one step late, looks at each of the source's."""
        encoded, begin = self.encode(source)
        weights = self.run(target, encoded, None, "last", begin)[1]
        if weights is None:
            raise PretuneError("this model has no attention, and so no alignments")
        return weights

    def encode(self, source: Packed) -> tuple[Encoded, RecurrentState]:
        """All states, a vector for each source, and the states that the decoder starts from."""
        first, last = (
            source.offsets[:-1].long().clamp(max=len(source) - 1),
            (source.offsets[1:].long() - 1).clamp(min=0),
        )
        if isinstance(self.encoder, TwoWays):
            states = self.encoder(source).last
            half = self.encoder.ahead.width
            vectors = torch.cat([states[last, :half], states[first, half:]], 1)
            return Encoded(states, source, vectors), self.start(vectors)
        layers, end = self.encoder.states_and_end(source)
        vectors = layers[-1][first if self.encoder.backward else last]
        return Encoded(layers[-1], source, vectors), end if self.copied else self.start(vectors)

    def start(self, vectors: Tensor) -> RecurrentState:
        """The decoder's first states, from a vector for each sequence; cells are 0."""
        cells: list[Recurrence] = [layer.cells for layer in self.layers]  # type: ignore[misc]
        widths = [one.outputs for one in cells]
        if "bridge" in self.top:
            hidden = list(torch.split(torch.tanh(self.top["bridge"](vectors)), widths, 1))
        else:
            hidden = [vectors] * len(cells)
        return RecurrentState(
            [
                (start, *(vectors.new_zeros(len(vectors), width) for width in one.state_widths[1:]))
                for start, one in zip(hidden, cells, strict=True)
            ]
        )

    def run(
        self,
        target: Packed,
        encoded: Encoded,
        cache: RecurrentCache | None,
        keep: Keep,
        begin: RecurrentState | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """The decoder's kept layers, and where it looked."""
        wanted = kept(keep, self.depth)
        x = self.embed(target)
        owner = side_of(target).sequence.long()
        rows = Rows.make(target)
        before = begin if begin is not None else cache.state if cache is not None else None
        before = before or self.start(encoded.vectors)
        inputs = torch.cat([x, encoded.vectors[owner]], 1) if self.every else x
        inputs = self.dropout(rows.lay(inputs), rows)
        type_of = kernel_type(x)
        start = [tuple(part[rows.lane].to(type_of) for part in state) for state in before.layers]
        layers = [x] if 0 in wanted else []
        run = self.run_fed if self.feed else self.run_at_once
        found, states, seen, weights = run(inputs, rows, start, encoded, target)
        layers += [
            rows.back(layer) for number, layer in enumerate(found, 1) if number in wanted and number < self.depth
        ]
        if self.depth in wanted:
            top = rows.back(found[-1])
            parts = [top] if seen is None else [top, seen]
            parts = [*parts, x] if self.readout == "maxout" else parts
            layers.append(top if self.readout == "none" else self.top["readout"](torch.cat(parts, 1)))
        if cache is not None:
            lanes = target.offsets.shape[0] - 1
            cache.advance(target, RecurrentState([rows.final(state, lanes) for state in states]))
        return layers, weights

    def run_at_once(
        self, x: Tensor, rows: Rows, start: list[State], encoded: Encoded, target: Packed
    ) -> tuple[list[Tensor], list[State], Tensor | None, Tensor | None]:
        """Layer by layer, then one look for all tokens."""
        found, states = [], []
        for layer, before in zip(self.layers, start, strict=True):
            x, state = layer(x, rows, before, None)
            found.append(x)
            states.append(state)
        if self.alignment is None:
            return found, states, None, None
        seen, weights = self.alignment(rows.back(x), encoded.states, cross_layout(target, encoded.packed))
        return found, states, seen, weights

    def run_fed(
        self, x: Tensor, rows: Rows, start: list[State], encoded: Encoded, target: Packed
    ) -> tuple[list[Tensor], list[State], Tensor | None, Tensor | None]:
        """Token by token: a look, then all layers."""
        assert self.alignment is not None
        keys, real = _dense(encoded.states, encoded.packed)  # (s, longest, width), (s, longest)
        prepared = self.alignment.prepare(keys)[rows.lane]
        keys, real, positions = keys[rows.lane], real[rows.lane], target.positions[rows.order]
        kind, x = x.dtype, x.to(kernel_type(x))
        keys, prepared = keys.to(x.dtype), prepared.to(x.dtype)
        weights = [layer.cells.weights(x.dtype) for layer in self.layers]  # type: ignore[union-attr, operator]
        states, outs, looks, shares = list(start), [[] for _ in self.layers], [], []  # type: ignore[var-annotated]
        first = 0
        for time, count in enumerate(rows.sizes.tolist()):
            query = states[-1][0][:count, None]
            share = self.alignment.weigh(
                query, prepared[:count], real[:count], positions[first : first + count, None], time
            )
            look = (share @ keys[:count])[:, 0]
            now = torch.cat([x[first : first + count], look], 1)
            one = torch.tensor([count])
            for number, layer in enumerate(self.layers):
                cells: Any = layer.cells
                old = tuple(part[:count] for part in states[number])
                out, state = cells.run(now, one, old, weights[number])
                states[number] = tuple(
                    torch.cat([new, part[count:]]) for new, part in zip(state, states[number], strict=True)
                )
                mask_rows = replace(rows, row=rows.row[first : first + count])
                dropped = layer.dropout(out, mask_rows)  # type: ignore[operator]
                now = now + dropped if layer.residual else dropped
                outs[number].append(now)
            looks.append(look)
            shares.append(share[:, 0])
            first += count
        found = [torch.cat(parts).to(kind) for parts in outs]
        return found, states, rows.back(torch.cat(looks).to(kind)), rows.back(torch.cat(shares))

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the encoder's embedding to the decoder's top."""
        groups = [(f"encoder {name}", modules) for name, modules in self.encoder.groups()]
        groups[0][1].append(self.embed)
        groups += [(f"decoder layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        groups[-1][1].extend(self.top.values())
        return groups


def _alike(encoder: Recurrent, cells: list[Recurrence]) -> bool:
    theirs: list[Any] = [layer.cells for layer in encoder.layers]
    return [(one.cell, one.state_widths) for one in theirs] == [(one.cell, one.state_widths) for one in cells]


def _dense(states: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """(m, width) → (s, longest, width), and which of these are there."""
    offsets = packed.offsets.long()
    lengths = offsets.diff()
    places = torch.arange(packed.longest, device=offsets.device)
    real = places < lengths[:, None]
    return states[(offsets[:-1, None] + places).clamp(max=len(states) - 1)], real
