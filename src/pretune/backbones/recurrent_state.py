"""The state of recurrent layers, which passes from batch to batch in training and from token to token in generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.nn.recurrent import CellState
from pretune.packed import Packed
from pretune.runtime.arrays import Array


@dataclass
class RecurrentState:
    """The hidden (and cell) states of each recurrent layer at the end of each sequence, (sequences, width) each."""

    layers: list[CellState]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the recurrent state by name, to save in a checkpoint."""
        return {f"{number}.{part}": x for number, state in enumerate(self.layers) for part, x in enumerate(state)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RecurrentState:
        """Rebuild a recurrent state from the tensors that its method `tensors` returned."""
        layers: dict[int, dict[int, Tensor]] = {}
        for name, tensor in tensors.items():
            number, part = map(int, name.split("."))
            layers.setdefault(number, {})[part] = tensor
        return cls([tuple(state[part] for part in sorted(state)) for _, state in sorted(layers.items())])

    def select(self, rows: Tensor) -> RecurrentState:
        """Return the recurrent states of the sequences at the indices `rows`."""
        return RecurrentState([tuple(part[rows] for part in state) for state in self.layers])


class RecurrentCache:
    """The state of a recurrent network during generation: recurrent states and, for seq2seq models, encoder states."""

    def __init__(self, sequences: int, slots: int) -> None:
        """Create an empty cache for a number of sequences.

        `slots`, the maximum length of a sequence, has no effect; it is there because other caches need it.
        """
        self.used: Array = np.zeros(sequences, dtype=np.int64)
        self.state: RecurrentState | None = None
        self.source: Any = None  # an `EncodedSource`, in encoder-decoders

    def advance(self, packed: Packed, state: RecurrentState) -> None:
        """Store `state`, the recurrent state after the tokens of `packed`, and count these tokens."""
        offsets = packed.offsets.cpu().numpy() if packed.host_offsets is None else packed.host_offsets
        self.used, self.state = self.used + np.diff(offsets), state

    def select(self, chosen: Array) -> None:
        """Reorder the cache so that sequence i continues from the state of sequence chosen[i], as in beam search."""
        self.used = self.used[chosen]
        if self.state is not None:
            rows = torch.from_numpy(chosen).to(self.state.layers[0][0].device)
            self.state = self.state.select(rows)
        if self.source is not None:
            self.source = self.source.select(chosen)
