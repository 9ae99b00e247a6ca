"""Recurrent stacks: LSTM layers on packed streams, with state carried from batch to batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pretune.backbones.states import Keep, States, kept
from pretune.nn.embeddings import Embeddings
from pretune.nn.linear import Linear
from pretune.packed import Packed


@dataclass
class RecurrentState:
    """Hidden and cell state of each layer, (layers, lanes, width) each."""

    hidden: Tensor
    cell: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """By name, for checkpoints."""
        return {"hidden": self.hidden, "cell": self.cell}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RecurrentState:
        """The inverse of `tensors`."""
        return cls(tensors["hidden"], tensors["cell"])


class LSTM(nn.Module):
    """LSTM layers from left to right.

    Sequences are lanes: each goes on from the state its predecessor in the carry left. A column `fresh` marks tokens that
    begin a document; the state is reset there, which makes what follows a row of its own.
    """

    def __init__(
        self,
        embed: Embeddings,
        layers: int,
        *,
        vocabulary_head: Callable[[], nn.Module],
        pooler: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(nn.LSTM(embed.width, embed.width) for _ in range(layers))
        self.vocabulary_head, self.pooler = vocabulary_head, pooler
        self.classifier = partial(Linear, embed.width)
        self.tagger = nn.Identity
        self.longest: int | None = None

    @property
    def width(self) -> int:
        """Width of the states."""
        return self.embed.width

    @property
    def depth(self) -> int:
        """How many layers follow on the embeddings."""
        return len(self.layers)

    def forward(self, packed: Packed, carry: RecurrentState | None = None, keep: Keep = "last") -> States:
        """States of the kept layers, (n, width) each, and the state at each lane's end."""
        wanted = kept(keep, len(self.layers))
        rows = _rows(packed)
        x = self.embed(packed)
        lanes = packed.offsets.shape[0] - 1
        layers = [x] if 0 in wanted else []
        hiddens, cells = [], []
        for number, layer in enumerate(self.layers):
            before = None if carry is None else (carry.hidden[number], carry.cell[number])
            stream = PackedSequence(x[rows.order], rows.batch_sizes)
            out, (hidden, cell) = layer(stream, rows.initial(before, x))
            x = torch.empty_like(out.data)
            x[rows.order] = out.data
            hiddens.append(rows.final(hidden[0], lanes))
            cells.append(rows.final(cell[0], lanes))
            if number + 1 in wanted:
                layers.append(x)
        return States(layers, RecurrentState(torch.stack(hiddens).detach(), torch.stack(cells).detach()))

    def restore_carry(self, tensors: dict[str, Tensor]) -> RecurrentState:
        """Its state, from a checkpoint."""
        return RecurrentState.from_tensors(tensors)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the embedding to the top."""
        return [("embed", [self.embed]), *((f"layer {i}", [layer]) for i, layer in enumerate(self.layers))]


@dataclass
class _Rows:
    """A Packed as torch's PackedSequence: rows sorted by falling length, tokens time step by time step."""

    order: Tensor  # (n,) the token at each place of the packed sequence
    batch_sizes: Tensor  # (time,)
    lane: Tensor  # (rows,) in the sorted order
    goes_on: Tensor  # (rows,) whether a row starts from its lane's carry
    last: Tensor  # (rows,) whether a row is its lane's last

    def initial(self, before: tuple[Tensor, Tensor] | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden and cell state to start from: the lane's own, or zero."""
        if before is None:
            zero = x.new_zeros(1, len(self.lane), x.shape[1])
            return zero, zero
        states = (state.to(x.dtype)[self.lane] * self.goes_on[:, None] for state in before)
        hidden, cell = (state.unsqueeze(0) for state in states)
        return hidden, cell

    def final(self, state: Tensor, lanes: int) -> Tensor:
        """(lanes, width): the state after each lane's last row."""
        out = state.new_zeros(lanes, state.shape[1])
        out[self.lane[self.last]] = state[self.last]
        return out


def _rows(packed: Packed) -> _Rows:
    offsets = packed.offsets.long()
    fresh = packed.columns.get("fresh")
    starts = torch.zeros(len(packed) + 1, dtype=torch.bool, device=offsets.device)
    starts[offsets] = True
    goes_on = starts.clone()[:-1]
    if fresh is not None:
        starts[:-1] |= fresh.bool()
        goes_on &= ~fresh.bool()
    begin = starts[:-1].nonzero().flatten()
    end = torch.cat([begin[1:], begin.new_tensor([len(packed)])])
    lane = torch.searchsorted(offsets[1:], begin, right=True)
    last = torch.cat([lane[1:] != lane[:-1], lane.new_ones(1, dtype=torch.bool)])
    lengths = end - begin
    by_length = lengths.argsort(descending=True, stable=True)
    begin, lengths = begin[by_length], lengths[by_length]
    times = torch.arange(int(lengths[0]), device=offsets.device)
    present = times[:, None] < lengths  # (time, rows)
    order = (begin + times[:, None])[present]
    return _Rows(order, present.sum(1).cpu(), lane[by_length], goes_on[begin], last[by_length])
