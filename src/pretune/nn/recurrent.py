"""Recurrent layers on packed streams: the library's own LSTM and GRU kernels, and a twin that goes step by step.

Rows are laid out time step by time step, the longest first, as those kernels want it. No loop goes over time, except where
states are clipped (the published ELMo), which no kernel does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.packed_layout import rearrange
from pretune.nn.dropout import Dropout
from pretune.packed import Packed, move

Cell = Literal["lstm", "gru"]
GATES = {"lstm": 4, "gru": 3}
BF16_SINCE = 91300  # the version of cuDNN that has recurrent kernels for it
State = tuple[Tensor, ...]  # hidden, and of an LSTM its cells too: (rows, width) each

# Only matters where a kernel wants another order than InOnePiece has, and costs one copy of the weights a step.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


@dataclass
class Rows:
    """Sequences, cut where documents begin, in the order of torch's PackedSequence: at each time a token of every row."""

    sizes: Tensor  # (time,) rows that are there at each time, on the host
    order: Tensor  # (n,) the token at each place
    place: Tensor  # (n,) the place of each token
    row: Tensor  # (n,) the row of each place
    lane: Tensor  # (rows,) the sequence of each row
    goes_on: Tensor  # (rows,) whether a row starts from its sequence's carry
    last: Tensor  # (sequences that have tokens,) the last row of each
    real: Tensor | None = None  # (rows, time) for a graph: rows of all lengths as one block, and what of it is there

    @classmethod
    def make(cls, packed: Packed) -> Rows:
        """The rows of a Packed. A column `fresh` marks tokens that begin a document."""
        if packed.rows is not None:
            return cls.of_a_graph(packed.ids, packed.rows)
        # On the host, which has to know the lengths anyway: a GPU is asked once, and not for each of the steps below.
        offsets = packed.offsets.cpu().numpy() if packed.host_offsets is None else packed.host_offsets
        starts = np.zeros(len(packed) + 1, dtype=bool)
        starts[offsets] = True
        goes_on = starts[:-1].copy()
        if "fresh" in packed.columns:
            fresh = packed.columns["fresh"].cpu().numpy().astype(bool)
            starts[:-1] |= fresh
            goes_on &= ~fresh
        begin = np.flatnonzero(starts[:-1])
        lengths = np.diff(np.append(begin, len(packed)))
        lane = np.searchsorted(offsets[1:], begin, side="right")
        last = np.append(lane[1:] != lane[:-1], True)
        by_length = np.argsort(-lengths, kind="stable")
        begin, lengths = begin[by_length], lengths[by_length]
        times = np.arange(lengths[0])[:, None]
        present = times < lengths  # (time, rows)
        order, row = (begin + times)[present], present.nonzero()[1]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        parts = (order, place, row, lane[by_length], goes_on[begin], np.flatnonzero(last[by_length]))
        moved = (move(torch.from_numpy(part), packed.offsets.device) for part in parts)
        return cls(torch.from_numpy(present.sum(1)), *moved)

    @classmethod
    def of_a_graph(cls, ids: Tensor, real: Tensor) -> Rows:
        """Rows that were padded, by tensors alone: a block of all times, whatever comes after a row's end."""
        every = torch.arange(ids.shape[0], device=ids.device)
        lane = torch.arange(real.shape[0], device=ids.device)
        yes = torch.ones_like(lane, dtype=torch.bool)
        return cls(real.sum(0), every, every, real.nonzero()[:, 0], lane, yes, lane, real)

    @property
    def even(self) -> bool:
        """Whether all rows are equally long."""
        return int(self.sizes[0]) == int(self.sizes[-1])

    def lay(self, x: Tensor) -> Tensor:
        """What lies in the order of the tokens, (n, width), in that of the rows."""
        return rearrange(x, self.order, self.place)

    def back(self, x: Tensor) -> Tensor:
        """What lies in the order of the rows, (n, width), in that of the tokens."""
        return rearrange(x, self.place, self.order)

    def initial(self, carry: State | None) -> State | None:
        """The state that each row starts from: its sequence's own, or zero."""
        if carry is None:
            return None
        return tuple(state[self.lane] * self.goes_on[:, None].to(state.dtype) for state in carry)

    def final(self, state: State, lanes: int) -> State:
        """(lanes, width) each: the state after each sequence's last row."""
        whose = self.lane[self.last]
        return tuple(part.new_zeros(lanes, part.shape[1]).index_copy(0, whose, part[self.last]) for part in state)

    def windows(self, length: int) -> Iterator[tuple[slice, Tensor]]:
        """Cuts through time: places of each, and its `sizes`. The rows of a later one are the first of an earlier one's."""
        first = 0
        for start in range(0, len(self.sizes), length):
            sizes = self.sizes[start : start + length]
            count = int(sizes.sum())
            yield slice(first, first + count), sizes
            first += count


class Locked(nn.Module):
    """Dropout with one mask for all times of a row (Gal and Ghahramani, 2016, variational dropout)."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(share)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """(n, width) in the order of the rows."""
        if not self.dropout.drops:
            return x
        mask = self.dropout.factors(len(rows.lane), x)
        if rows.even:
            return (x.view(-1, *mask.shape) * mask).view(x.shape)
        return x * mask[rows.row]


class Recurrence(nn.Module):
    """A layer of LSTM or GRU cells, from left to right.

    An LSTM has one bias (a second one, as in torch, would be added to it); a GRU has two.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        cell: Cell = "lstm",
        *,
        projection: int | None = None,
        drop: float = 0.0,
        clip: tuple[float, float] | None = None,
    ) -> None:
        """`projection` is the width that hidden states are led to (ELMo); `drop` the share of the recurrent weights that
        are dropped out for a step (AWD-LSTM); `clip` bounds cells and projected states, one step after the other."""
        super().__init__()
        assert cell == "lstm" or not (projection or clip), "GRUs are neither projected nor clipped"
        self.cell, self.width, self.clip = cell, width, clip
        self.outputs = projection or width
        gates = GATES[cell] * width
        self.weight_ih = nn.Parameter(torch.empty(gates, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates, self.outputs))
        self.bias = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates)) if cell == "gru" else None
        self.weight_hr = nn.Parameter(torch.empty(projection, width)) if projection else None
        self.drop = Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch draws them: evenly up to one over the square root of the width; biases 0."""
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    @property
    def inputs(self) -> int:
        """Width of what goes in."""
        return self.weight_ih.shape[1]

    @property
    def state_widths(self) -> list[int]:
        """Of the parts of its state."""
        return [self.outputs, self.width] if self.cell == "lstm" else [self.outputs]

    def weights(self, kind: torch.dtype) -> list[Tensor]:
        """In the order of the kernels."""
        second = torch.zeros_like(self.bias) if self.bias_hh is None else self.bias_hh
        matrices = [self.weight_ih, self.recurrent_weight()]
        projection = [] if self.weight_hr is None else [self.weight_hr]
        if not self.bias.is_cuda:
            return [weight.to(kind) for weight in (*matrices, self.bias, second, *projection)]
        made = InOnePiece.apply(kind, *matrices, *projection, self.bias, second)  # type: ignore[no-untyped-call]
        return [*made[:2], *made[-2:], *made[2:-2]]

    def recurrent_weight(self) -> Tensor:
        """In training with some of it dropped."""
        weight = self.weight_hh
        if not self.drop.drops:
            return weight
        return weight * self.drop.factors(len(weight), weight)

    def forward(
        self, x: Tensor, rows: Rows, before: State | None = None, window: int | None = None
    ) -> tuple[Tensor, State]:
        """(n, inputs) in the order of the rows, and the state they start from → (n, outputs), and the state they end in.

        Gradients go back in time through `window` steps; None: through all.
        """
        kind, x = x.dtype, x.to(kernel_type(x))
        if rows.real is not None:
            return self.run_block(x, rows.real)
        count = int(rows.sizes[0])
        if before is None:
            state: State = tuple(x.new_zeros(count, width) for width in self.state_widths)
        else:
            state = tuple(part.to(x.dtype) for part in before)
        weights = self.weights(x.dtype)
        if window is None or len(rows.sizes) <= window:
            out, state = self.run(x, rows.sizes, state, weights)
            return out.to(kind), state
        outs = []
        for places, sizes in rows.windows(window):
            present = int(sizes[0])
            out, after = self.run(x[places], sizes, tuple(part[:present].detach() for part in state), weights)
            state = tuple(torch.cat([new, old[present:]]) for new, old in zip(after, state, strict=True))
            outs.append(out)
        return torch.cat(outs).to(kind), state

    def run_block(self, x: Tensor, real: Tensor) -> tuple[Tensor, State]:
        """For a graph: rows side by side with what padding they had, from no state; their ends nobody asks for."""
        if self.clip is not None or self.weight_hr is not None:
            raise TypeError("states that are clipped or projected")  # by no operator of graphs
        place = (real.flatten().long().cumsum(0) - 1).clamp(min=0)
        dense = x[place].view(real.shape[0], real.shape[1], x.shape[-1])
        zero = x.new_zeros(1, dense.shape[0], self.width)
        kernel: Any = getattr(torch._VF, self.cell)  # type: ignore[attr-defined]
        initial = [zero, zero] if self.cell == "lstm" else zero
        out, *after = kernel(dense, initial, self.weights(x.dtype), True, 1, 0.0, False, False, True)
        return out.flatten(0, 1)[real.flatten()], tuple(part[0] for part in after)

    def run(self, x: Tensor, sizes: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        """All times at once, by the kernels; rows that are equally long, as a dense block."""
        if self.clip is not None:
            return run_by_steps(x, sizes, state, weights, self.cell, self.clip)
        kernel: Any = getattr(torch._VF, self.cell)  # type: ignore[attr-defined]
        initial: Any = [part.unsqueeze(0).contiguous() for part in state]
        initial = initial if self.cell == "lstm" else initial[0]
        options = (True, 1, 0.0, self.training, False)  # biases, layers, dropout, training, both ways
        if int(sizes[0]) == int(sizes[-1]):
            dense = x.view(len(sizes), int(sizes[0]), -1)
            out, *after = kernel(dense, initial, weights, *options, False)
            out = out.flatten(0, 1)
        else:
            out, *after = kernel(x, sizes, initial, weights, *options)
        return out, tuple(part[0] for part in after)


class InOnePiece(torch.autograd.Function):
    """Weights of another type, one behind the other in one piece of memory.

    That is how cuDNN wants them; it would copy them there one by one, after they had been cast one by one.
    """

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        """In the same order."""
        ctx.kinds = [weight.dtype for weight in weights]
        sizes = [weight.numel() for weight in weights]
        parts = torch.split(torch.empty(sum(sizes), dtype=kind, device=weights[0].device), sizes)
        made = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
        torch._foreach_copy_(made, weights)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """As each weight's own type."""
        made = [torch.empty_like(one, dtype=kind) for one, kind in zip(gradients, ctx.kinds, strict=True)]
        torch._foreach_copy_(made, gradients)
        return (None, *made)


def kernel_type(x: Tensor) -> torch.dtype:
    """The type that cells compute in: that of their input, unless cuDNN is too old for bf16."""
    old = x.is_cuda and (torch.backends.cudnn.version() or 0) < BF16_SINCE  # type: ignore[no-untyped-call]
    return torch.float32 if old and x.dtype == torch.bfloat16 else x.dtype


def run_by_steps(
    x: Tensor,
    sizes: Tensor,
    state: State,
    weights: list[Tensor],
    cell: Cell = "lstm",
    clip: tuple[float, float] | None = None,
) -> tuple[Tensor, State]:
    """What the kernels compute, one time after the other; with `clip`, cells and projected states within bounds."""
    weight_ih, weight_hh, bias, bias_hh, *projection = weights
    inputs = F.linear(x, weight_ih, bias)
    outs: list[Tensor] = []
    first = 0
    for count in sizes.tolist():
        now, old = inputs[first : first + count], tuple(part[:count] for part in state)
        first += count
        again = F.linear(old[0], weight_hh, bias_hh)
        if cell == "gru":
            reset, update, new = now.chunk(3, 1)
            reset_again, update_again, new_again = again.chunk(3, 1)
            candidate = torch.tanh(new + torch.sigmoid(reset + reset_again) * new_again)
            share = torch.sigmoid(update + update_again)
            after: State = (share * old[0] + (1 - share) * candidate,)
        else:
            enter, forget, candidate, leave = (now + again).chunk(4, 1)
            cells = torch.sigmoid(forget) * old[1] + torch.sigmoid(enter) * torch.tanh(candidate)
            if clip is not None:
                cells = cells.clamp(-clip[0], clip[0])
            hidden = torch.sigmoid(leave) * torch.tanh(cells)
            if projection:
                hidden = F.linear(hidden, projection[0])
                if clip is not None:
                    hidden = hidden.clamp(-clip[1], clip[1])
            after = (hidden, cells)
        outs.append(after[0])
        state = tuple(torch.cat([new, part[count:]]) for new, part in zip(after, state, strict=True))
    return torch.cat(outs), state


class RecurrentLayer(nn.Module):
    """Cells, locked dropout of what comes out, and where `residual` says so what went in added to it."""

    def __init__(self, cells: Recurrence, dropout: float = 0.0, residual: bool = False) -> None:
        super().__init__()
        assert not residual or cells.inputs == cells.outputs
        self.cells, self.residual = cells, residual
        self.dropout = Locked(dropout)

    def forward(self, x: Tensor, rows: Rows, before: State | None, window: int | None) -> tuple[Tensor, State]:
        """(n, inputs) → (n, outputs), and the state that rows end in."""
        out, state = self.cells(x, rows, before, window)
        out = self.dropout(out, rows)
        return (x + out if self.residual else out), state


def asks_the_host(root: nn.Module) -> bool:
    """Whether a network has recurrent layers, whose kernels ask the host for lengths: no recording can hold them."""
    return any(isinstance(module, Recurrence | nn.RNNBase) for module in root.modules())
