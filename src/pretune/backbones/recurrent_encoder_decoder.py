"""Recurrent encoder-decoders: sequence to sequence (Sutskever et al., 2014), with or without attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, selected_layers
from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.backbones.recurrent_state import RecurrentCache, RecurrentState
from pretune.backbones.second_decoder import copy_modules, replace_modules, select_sequences
from pretune.nn.attention.query_key_layout import cross_layout, token_layout
from pretune.nn.attention.recurrent_attention import RecurrentAttention
from pretune.nn.compiler_exclusions import exclude_from_compile
from pretune.nn.linear import Linear
from pretune.nn.recurrent import (
    CellState,
    RecurrentCells,
    RecurrentLayer,
    TimeMajorRows,
    VariationalDropout,
    kernel_dtype,
)
from pretune.packed import Packed
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError

Readout = Literal["none", "tanh", "maxout"]


@dataclass
class EncodedSource:
    """The hidden states of the encoder for the source sequences, and one sentence vector per sequence."""

    states: Tensor  # (m, width)
    packed: Packed
    vectors: Tensor  # (s, width) the sentence vector of each source sequence

    def select(self, chosen: Array) -> EncodedSource:
        """Return the encoder states of the source sequences at the indices `chosen`, in that order."""
        packed, rows = select_sequences(self.packed, chosen)
        sequences = torch.from_numpy(chosen).to(self.states.device)
        return EncodedSource(self.states[rows], packed, self.vectors[sequences])


class Maxout(nn.Module):
    """The elementwise maximum of two linear maps (Goodfellow et al., 2013)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.both = Linear(inputs, 2 * outputs, stacked=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum of two linear maps of the input: (n, inputs) → (n, outputs)."""
        first, second = self.both(x).chunk(2, -1)
        return torch.maximum(first, second)


class RecurrentEncoderDecoder(LayeredBackbone):
    """A recurrent encoder-decoder, which decodes sequence i of a target batch from sequence i of a source batch.

    The decoder starts from the encoder's final states if encoder and decoder have the same kinds and widths of cells;
    otherwise it starts from a learned projection of the encoder's sentence vector.
    """

    cache = RecurrentCache  # the cache class for generation

    def __init__(
        self,
        encoder: RecurrentBackbone | BidirectionalBackbone,
        embed: Any,
        layers: Iterable[RecurrentLayer],
        *,
        alignment: RecurrentAttention | None = None,
        every: bool = False,
        feed: bool = False,
        readout: int | None = None,
        dropout: float = 0.0,
        vocabulary_head: Callable[[], nn.Module],
    ) -> None:
        """Assemble the network from an encoder and the decoder's `embed` and `layers`.

        `alignment` is the decoder's attention to the encoder states. A decoder step attends after it has updated its
        state (Luong et al., 2015) or, with `feed`, before (Bahdanau et al., 2015). With `every`, each step also reads
        the encoder's sentence vector (Cho et al., 2014). `readout` is the width of a maxout layer over state, context
        and input embedding, below the vocabulary head; without it, models with attention have a tanh layer over state
        and context there.
        """
        super().__init__()
        self.encoder, self.embed = encoder, embed
        self.layers = nn.ModuleList(layers)
        self.every, self.feed = every, feed
        self.dropout = VariationalDropout(dropout)
        cells: list[RecurrentCells] = [layer.cells for layer in self.layers]  # type: ignore[misc]
        self.copied = isinstance(encoder, RecurrentBackbone) and _same_cells(encoder, cells)
        self.top = nn.ModuleDict()
        if not self.copied:
            self.top["bridge"] = Linear(encoder.width, sum(one.state_widths[0] for one in cells))
        if alignment is not None:
            self.top["alignment"] = alignment
        state, context = cells[-1].outputs, encoder.width if alignment is not None else 0
        if readout is not None:
            self.top["readout"] = Maxout(state + context + int(embed.width), readout)
        elif alignment is not None:
            self.top["readout"] = nn.Sequential(Linear(state + context, state, bias=False), nn.Tanh())
        self._width = readout or state
        self.readout: Readout = "maxout" if readout is not None else "tanh" if alignment is not None else "none"
        self.vocabulary_head = vocabulary_head
        self.set_task_parts(self._width)
        self.max_positions: int | None = None

    @property
    def width(self) -> int:
        """The width of the decoder's hidden states."""
        return self._width

    @property
    def alignment(self) -> RecurrentAttention | None:
        """The decoder's attention to the source, or None for a model without attention."""
        parts: dict[str, Any] = dict(self.top.items())
        return parts.get("alignment")

    @exclude_from_compile  # the layout depends on the lengths, which differ from batch to batch
    def forward(
        self, source: Packed, target: Packed, state: RecurrentCache | None = None, keep: LayerSelection = "last"
    ) -> BackboneOutput:
        """Encode `source`, decode `target`, and return the hidden states (tokens, width) of the decoder.

        `keep` selects decoder layers. `state` caches the encoder states and the decoder state, for generation.
        """
        if state is not None and state.source is not None:
            return BackboneOutput(self.run(target, state.source, state, keep)[0], state)
        encoded, begin = self.encode(source)
        if state is not None:
            state.source, state.state = encoded, begin
        return BackboneOutput(self.run(target, encoded, state, keep, begin)[0], state)

    @exclude_from_compile
    def decode(
        self,
        target: Packed,
        source: Packed,
        encoded: Tensor,
        state: RecurrentCache | None = None,
        keep: LayerSelection = "last",
    ) -> BackboneOutput:
        """Decode `target` from `encoded`, the encoder states of `source`, and return the decoder's hidden states.

        `keep` selects decoder layers; `state` caches the decoder state, for generation.
        """
        vectors = encoded[(source.offsets[1:].long() - 1).clamp(min=0)]
        return BackboneOutput(self.run(target, EncodedSource(encoded, source, vectors), state, keep)[0], state)

    def copy_decoder(self) -> nn.ModuleDict:
        """Return a copy of the decoder's layers, without its embeddings, as a second decoder for `with_decoder`."""
        return copy_modules(self, ("layers", "top"))

    def with_decoder(self, decoder: nn.ModuleDict) -> Self:
        """Return the network with another decoder, made by `copy_decoder`; encoder and embeddings are shared."""
        return replace_modules(self, decoder)

    def align(self, source: Packed, target: Packed) -> Tensor:
        """Return the attention weights of target tokens over their source: (target tokens, longest source)."""
        encoded, begin = self.encode(source)
        weights = self.run(target, encoded, None, "last", begin)[1]
        if weights is None:
            raise PretuneError("this model has no attention, so it cannot align tokens; use a model with attention")
        return weights

    def encode(self, source: Packed) -> tuple[EncodedSource, RecurrentState]:
        """Encode the source sequences; return their hidden states and the initial state of the decoder."""
        first = source.offsets[:-1].long().clamp(max=len(source) - 1)
        last = (source.offsets[1:].long() - 1).clamp(min=0)
        if isinstance(self.encoder, BidirectionalBackbone):
            states = self.encoder(source).last
            half = self.encoder.ahead.width
            vectors = torch.cat([states[last, :half], states[first, half:]], 1)
            return EncodedSource(states, source, vectors), self.start(vectors)
        layers, end = self.encoder.states_and_end(source)
        vectors = layers[-1][first if self.encoder.backward else last]
        return EncodedSource(layers[-1], source, vectors), end if self.copied else self.start(vectors)

    def start(self, vectors: Tensor) -> RecurrentState:
        """Return the decoder's initial state, given one sentence vector per source sequence; LSTM cell states are 0."""
        cells: list[RecurrentCells] = [layer.cells for layer in self.layers]  # type: ignore[misc]
        hidden = [vectors] * len(cells)
        if "bridge" in self.top:
            hidden = list(torch.split(torch.tanh(self.top["bridge"](vectors)), [one.outputs for one in cells], 1))
        rest = [[vectors.new_zeros(len(vectors), width) for width in one.state_widths[1:]] for one in cells]
        return RecurrentState([(first, *others) for first, others in zip(hidden, rest, strict=True)])

    def run(
        self,
        target: Packed,
        encoded: EncodedSource,
        cache: RecurrentCache | None,
        keep: LayerSelection,
        begin: RecurrentState | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run the decoder on `target` from the state `begin`; if None, from `cache` or the method `start`.

        Return the outputs of each layer that `keep` selects, and the attention weights (None without attention).
        """
        wanted = selected_layers(keep, self.depth)
        x = self.embed(target)
        owner = token_layout(target).sequence.long()
        rows = TimeMajorRows.make(target)
        before = begin if begin is not None else cache.state if cache is not None else None
        before = before or self.start(encoded.vectors)
        inputs = torch.cat([x, encoded.vectors[owner]], 1) if self.every else x
        inputs = self.dropout(rows.to_time_major(inputs), rows)
        dtype = kernel_dtype(x)
        start = [tuple(part[rows.sequence].to(dtype) for part in state) for state in before.layers]
        layers = [x] if 0 in wanted else []
        run = self._attend_first if self.feed else self._attend_last
        outputs, states, context, weights = run(inputs, rows, start, encoded, target)
        layers += [
            rows.to_packed(layer) for number, layer in enumerate(outputs, 1) if number in wanted and number < self.depth
        ]
        if self.depth in wanted:
            top = rows.to_packed(outputs[-1])
            parts = [top] if context is None else [top, context]
            parts = [*parts, x] if self.readout == "maxout" else parts
            layers.append(top if self.readout == "none" else self.top["readout"](torch.cat(parts, 1)))
        if cache is not None:
            sequences = target.offsets.shape[0] - 1
            cache.advance(target, RecurrentState([rows.final_state(state, sequences) for state in states]))
        return layers, weights

    def _attend_last(
        self, x: Tensor, rows: TimeMajorRows, start: list[CellState], encoded: EncodedSource, target: Packed
    ) -> tuple[list[Tensor], list[CellState], Tensor | None, Tensor | None]:
        """Run all decoder layers on the inputs `x`, then attend to the source from the top layer (Luong et al., 2015).

        Return the output and the final state of each layer, the context vectors and the attention weights; the last two
        are None without attention. `start` has the initial state of each layer, and `rows` the time-major order of the
        tokens.
        """
        outputs, states = [], []
        for layer, before in zip(self.layers, start, strict=True):
            x, state = layer(x, rows, before, None)
            outputs.append(x)
            states.append(state)
        if self.alignment is None:
            return outputs, states, None, None
        context, weights = self.alignment(rows.to_packed(x), encoded.states, cross_layout(target, encoded.packed))
        return outputs, states, context, weights

    def _attend_first(
        self, x: Tensor, rows: TimeMajorRows, start: list[CellState], encoded: EncodedSource, target: Packed
    ) -> tuple[list[Tensor], list[CellState], Tensor | None, Tensor | None]:
        """Run the decoder on the inputs `x`, attending to the source before each time step (Bahdanau et al., 2015).

        Return the output and the final state of each layer, the context vectors and the attention weights. `start` has
        the initial state of each layer, and `rows` the time-major order of the tokens.
        """
        assert self.alignment is not None
        keys, real = _pad(encoded.states, encoded.packed)  # (s, longest, width), (s, longest)
        prepared = self.alignment.prepare(keys)[rows.sequence]
        keys, real, positions = keys[rows.sequence], real[rows.sequence], target.positions[rows.order]
        kind, x = x.dtype, x.to(kernel_dtype(x))
        keys, prepared = keys.to(x.dtype), prepared.to(x.dtype)
        weights = [layer.cells.weights(x.dtype) for layer in self.layers]  # type: ignore[union-attr, operator]
        states, outs, contexts, all_weights = list(start), [[] for _ in self.layers], [], []  # type: ignore[var-annotated]
        first = 0
        for time, count in enumerate(rows.sizes.tolist()):
            query = states[-1][0][:count, None]
            attention = self.alignment.weigh(
                query, prepared[:count], real[:count], positions[first : first + count, None], time
            )
            context = (attention @ keys[:count])[:, 0]
            now = torch.cat([x[first : first + count], context], 1)
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
            contexts.append(context)
            all_weights.append(attention[:, 0])
            first += count
        outputs = [torch.cat(parts).to(kind) for parts in outs]
        return outputs, states, rows.to_packed(torch.cat(contexts).to(kind)), rows.to_packed(torch.cat(all_weights))

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """Return the layers as (name, modules) pairs, those of the encoder first, for layer-wise training."""
        groups = [(f"encoder {name}", modules) for name, modules in self.encoder.groups()]
        groups[0][1].append(self.embed)
        groups += [(f"decoder layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        groups[-1][1].extend(self.top.values())
        return groups


def _same_cells(encoder: RecurrentBackbone, cells: list[RecurrentCells]) -> bool:
    """Return whether the recurrent cells of an encoder have the same kinds and widths as those of a decoder."""
    theirs: list[Any] = [layer.cells for layer in encoder.layers]
    return [(one.cell, one.state_widths) for one in theirs] == [(one.cell, one.state_widths) for one in cells]


def _pad(states: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """Pad packed states (tokens, width) to (sequences, longest, width); also return the mask of real tokens."""
    offsets = packed.offsets.long()
    lengths = offsets.diff()
    places = torch.arange(packed.max_length, device=offsets.device)
    real = places < lengths[:, None]
    return states[(offsets[:-1, None] + places).clamp(max=len(states) - 1)], real
