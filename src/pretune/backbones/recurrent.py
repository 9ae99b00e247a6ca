"""Stacks of LSTM or GRU layers over packed batches: AWD-LSTM, and each direction of ELMo."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from pretune.backbones.backbone import BackboneOutput, LayeredBackbone, LayerSelection, selected_layers
from pretune.backbones.bidirectional import reversed_packed
from pretune.backbones.recurrent_state import RecurrentCache, RecurrentState
from pretune.nn.attention.query_key_layout import permute_rows, reverse_index
from pretune.nn.compiler_exclusions import exclude_from_compile
from pretune.nn.recurrent import CellState, RecurrentLayer, TimeMajorRows, VariationalDropout
from pretune.packed import Packed


class RecurrentBackbone(LayeredBackbone):
    """A backbone of LSTM or GRU layers on an embedding; states are reset where the column `document_start` is 1."""

    cache = RecurrentCache  # the cache class for generation

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
        """Assemble a recurrent backbone from an embedding and layers.

        With `backward`, each sequence is read from its end. `window` is the number of time steps after which BPTT is
        truncated (None: never).
        """
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self.dropout = VariationalDropout(dropout)
        self.window, self.backward = window, backward
        self.vocabulary_head = vocabulary_head
        self.set_task_parts(self.width, pooler=pooler)
        self.max_positions: int | None = None

    @property
    def width(self) -> int:
        """The width of the top layer's hidden states."""
        return self.widths[-1]

    @property
    def widths(self) -> list[int]:
        """The widths of the embeddings and of the hidden states of each layer."""
        cells: list[Any] = [layer.cells for layer in self.layers]
        return [int(self.embed.width), *(one.outputs for one in cells)]

    @exclude_from_compile  # the layout depends on the lengths, which differ from batch to batch
    def forward(
        self, packed: Packed, state: RecurrentState | RecurrentCache | None = None, keep: LayerSelection = "last"
    ) -> BackboneOutput:
        """Return the hidden states (tokens, width) of the layers that `keep` selects, and the final recurrent state."""
        before = state.state if isinstance(state, RecurrentCache) else state
        if not len(packed):  # all texts are empty
            x, wanted = self.embed(packed), sorted(selected_layers(keep, self.depth))
            return BackboneOutput([x.new_zeros(0, self.widths[number]) for number in wanted], state)
        layers, end = self.states_and_end(packed, before, keep)
        after = RecurrentState([tuple(part.detach() for part in parts) for parts in end.layers])
        if not isinstance(state, RecurrentCache):
            return BackboneOutput(layers, after)
        state.advance(packed, after)
        return BackboneOutput(layers, state)

    def states_and_end(
        self, packed: Packed, before: RecurrentState | None = None, keep: LayerSelection = "last"
    ) -> tuple[list[Tensor], RecurrentState]:
        """Run the backbone on `packed` from the state `before`, which is 0 if None.

        Return the hidden states (tokens, width) of each layer that `keep` selects, and the state at the end of each
        sequence.
        """
        if not self.backward:
            return self.run(self.embed(packed), packed, before, keep)
        turn = reverse_index(packed)
        turned = reversed_packed(packed, turn)
        layers, end = self.run(self.embed(turned), turned, before, keep)
        return [permute_rows(x, turn) for x in layers], end

    def run(
        self, x: Tensor, packed: Packed, before: RecurrentState | None, keep: LayerSelection
    ) -> tuple[list[Tensor], RecurrentState]:
        """Run the layers on the embeddings `x` of `packed`, (tokens, width), from the state `before` (None: 0).

        Return the outputs of each layer that `keep` selects, and the state at the end of each sequence.
        """
        wanted, rows = selected_layers(keep, self.depth), TimeMajorRows.make(packed)
        sequences = packed.offsets.shape[0] - 1
        layers = [x] if 0 in wanted else []
        x = self.dropout(rows.to_time_major(x), rows)
        states: list[CellState] = []
        for number, layer in enumerate(self.layers):
            initial = None if before is None else rows.initial_state(before.layers[number])
            x, state = layer(x, rows, initial, self.window)
            states.append(rows.final_state(state, sequences))
            if number + 1 in wanted:
                layers.append(rows.to_packed(x))
        return layers, RecurrentState(states)

    def restore_state(self, tensors: dict[str, Tensor]) -> RecurrentState:
        """Rebuild the recurrent state from the tensors of a checkpoint."""
        return RecurrentState.from_tensors(tensors)
