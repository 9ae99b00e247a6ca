"""Recurrent layers on packed sequences: torch's LSTM and GRU kernels, and a step-by-step implementation.

Tokens are ordered by time step, the longest sequence first, as torch's kernels require. Only layers with clipped states
(the published ELMo) loop over time steps, since no kernel supports clipping.
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

from pretune.nn.attention.query_key_layout import TracedPacked, permute_rows
from pretune.nn.dropout import Dropout
from pretune.nn.operation_counts import OperationSizes
from pretune.packed import Packed, copy_async

CellKind = Literal["lstm", "gru"]
GATES = {"lstm": 4, "gru": 3}
CUDNN_WITH_BF16 = 91300  # the first version of cuDNN with recurrent kernels for bf16
CellState = tuple[Tensor, ...]  # hidden states and, of an LSTM, cell states: (rows, width) each

# Only relevant where a kernel needs another order than FlattenWeights has; it then costs one copy of the weights per step.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


@dataclass
class TimeMajorRows:
    """The tokens of a batch in time-major order, as in torch's PackedSequence.

    A row is a sequence; if the batch has the column `document_start`, each document in a sequence is a row.
    """

    sizes: Tensor  # (time,) number of rows at each time step, on the host
    order: Tensor  # (n,) the token at each place
    inverse: Tensor  # (n,) the place of each token
    row: Tensor  # (n,) the row of each place
    sequence: Tensor  # (rows,) the sequence of each row
    continues_state: Tensor  # (rows,) whether a row starts from the recurrent state of its sequence
    last: Tensor  # (sequences that have tokens,) the last row of each
    real: Tensor | None = None  # (rows, time) mask of real tokens in an exported graph, where rows form a padded block

    @classmethod
    def make(cls, packed: Packed) -> TimeMajorRows:
        """Build time-major rows from a packed batch, with a new row at each token whose `document_start` is 1."""
        if isinstance(packed, TracedPacked):
            return cls.from_padding_mask(packed.ids, packed.mask)
        # On the host, which needs the lengths anyway: one transfer from the GPU instead of one per operation below.
        offsets = packed.offsets.cpu().numpy() if packed.host_offsets is None else packed.host_offsets
        starts = np.zeros(len(packed) + 1, dtype=bool)
        starts[offsets] = True
        goes_on = starts[:-1].copy()
        if "document_start" in packed.columns:
            fresh = packed.columns["document_start"].cpu().numpy().astype(bool)
            starts[:-1] |= fresh
            goes_on &= ~fresh
        begin = np.flatnonzero(starts[:-1])
        lengths = np.diff(np.append(begin, len(packed)))
        sequence = np.searchsorted(offsets[1:], begin, side="right")
        last = np.append(sequence[1:] != sequence[:-1], True)
        by_length = np.argsort(-lengths, kind="stable")
        begin, lengths = begin[by_length], lengths[by_length]
        times = np.arange(lengths[0])[:, None]
        present = times < lengths  # (time, rows)
        order, row = (begin + times)[present], present.nonzero()[1]
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        parts = (order, inverse, row, sequence[by_length], goes_on[begin], np.flatnonzero(last[by_length]))
        moved = (copy_async(torch.from_numpy(part), packed.offsets.device) for part in parts)
        return cls(torch.from_numpy(present.sum(1)), *moved)

    @classmethod
    def from_padding_mask(cls, ids: Tensor, real: Tensor) -> TimeMajorRows:
        """Build time-major rows in a graph that is traced for export; `real`, (rows, time), is the mask of real tokens.

        `ids` are the ids of the real tokens, row by row.
        """
        every = torch.arange(ids.shape[0], device=ids.device)
        sequence = torch.arange(real.shape[0], device=ids.device)
        yes = torch.ones_like(sequence, dtype=torch.bool)
        return cls(real.sum(0), every, every, real.nonzero()[:, 0], sequence, yes, sequence, real)

    @property
    def equal_lengths(self) -> bool:
        """Return whether all rows (sequences or documents) have the same length."""
        return int(self.sizes[0]) == int(self.sizes[-1])

    def to_time_major(self, x: Tensor) -> Tensor:
        """Permute (n, width) from the order of the packed batch to time-major order."""
        return permute_rows(x, self.order, self.inverse)

    def to_packed(self, x: Tensor) -> Tensor:
        """Permute (n, width) from time-major order to the order of the packed batch."""
        return permute_rows(x, self.inverse, self.order)

    def initial_state(self, state: CellState) -> CellState:
        """Expand the initial states of sequences to rows; the rows of later documents of a sequence start with 0."""
        return tuple(part[self.sequence] * self.continues_state[:, None].to(part.dtype) for part in state)

    def final_state(self, state: CellState, sequences: int) -> CellState:
        """Reduce the final states of rows to those of sequences, (sequences, width): the states of their last rows."""
        owner = self.sequence[self.last]
        return tuple(part.new_zeros(sequences, part.shape[1]).index_copy(0, owner, part[self.last]) for part in state)

    def windows(self, length: int) -> Iterator[tuple[slice, Tensor]]:
        """Split the time steps into windows of `length` steps.

        Yield, for each window, the slice of its tokens and the number of rows at each step.
        """
        first = 0
        for start in range(0, len(self.sizes), length):
            sizes = self.sizes[start : start + length]
            count = int(sizes.sum())
            yield slice(first, first + count), sizes
            first += count


class VariationalDropout(nn.Module):
    """Variational dropout (Gal and Ghahramani, 2016): one mask for all time steps of a sequence."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(rate)

    def forward(self, x: Tensor, rows: TimeMajorRows) -> Tensor:
        """Apply dropout to x, (n, width), whose tokens are in the time-major order of `rows`; each row has one mask."""
        if not self.dropout.is_active:
            return x
        mask = self.dropout.factors(len(rows.sequence), x)
        if rows.equal_lengths:
            return (x.view(-1, *mask.shape) * mask).view(x.shape)
        return x * mask[rows.row]


class RecurrentCells(nn.Module):
    """A unidirectional LSTM with a single bias (the second one in torch is redundant), or a GRU with two."""

    def __init__(
        self,
        inputs: int,
        width: int,
        cell: CellKind = "lstm",
        *,
        projection: int | None = None,
        drop: float = 0.0,
        clip: tuple[float, float] | None = None,
    ) -> None:
        """Build an LSTM or GRU; `projection` is the width to which hidden states are projected (ELMo).

        `drop` is the fraction of recurrent weights dropped per step (AWD-LSTM); `clip` has the bounds of cell states
        and of projected hidden states.
        """
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
        """Initialize weights uniformly in ± 1 / √width, as torch does, and biases to 0."""
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the number of weights of this layer to `sizes`, from which the FLOPs of a model are computed."""
        sizes.recurrence += sum(p.numel() for p in self.parameters() if p.dim() == 2)

    @property
    def inputs(self) -> int:
        """Return the input width of the recurrent layer."""
        return self.weight_ih.shape[1]

    @property
    def state_widths(self) -> list[int]:
        """Return the widths of the hidden state and, for an LSTM, of the cell state."""
        return [self.outputs, self.width] if self.cell == "lstm" else [self.outputs]

    def weights(self, kind: torch.dtype) -> list[Tensor]:
        """Return the weights of the LSTM or GRU in the order that torch's kernels expect, cast to the dtype `kind`."""
        second = torch.zeros_like(self.bias) if self.bias_hh is None else self.bias_hh
        matrices = [self.weight_ih, self.recurrent_weight()]
        projection = [] if self.weight_hr is None else [self.weight_hr]
        if not self.bias.is_cuda:
            return [weight.to(kind) for weight in (*matrices, self.bias, second, *projection)]
        flat = FlattenWeights.apply(kind, *matrices, *projection, self.bias, second)  # type: ignore[no-untyped-call]
        return [*flat[:2], *flat[-2:], *flat[2:-2]]

    def recurrent_weight(self) -> Tensor:
        """Return the hidden-to-hidden weight matrix, with DropConnect in training."""
        weight = self.weight_hh
        return weight * self.drop.factors(len(weight), weight) if self.drop.is_active else weight

    def forward(
        self, x: Tensor, rows: TimeMajorRows, before: CellState | None = None, window: int | None = None
    ) -> tuple[Tensor, CellState]:
        """Run the LSTM or GRU on x, (n, inputs), whose tokens are in the time-major order of `rows`.

        Return the outputs, (n, outputs), and the final state of each row. `before` is the initial state of each row
        (None: 0). Gradients are truncated after `window` time steps (truncated BPTT; None: never).
        """
        kind, x = x.dtype, x.to(kernel_dtype(x))
        if rows.real is not None:
            return self.run_block(x, rows.real)
        count = int(rows.sizes[0])
        if before is None:
            state: CellState = tuple(x.new_zeros(count, width) for width in self.state_widths)
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

    def run_block(self, x: Tensor, real: Tensor) -> tuple[Tensor, CellState]:
        """Run the LSTM or GRU in an exported graph, on padded inputs; `real` (rows, time) marks the tokens that are not padding.

        The final states that it returns are not valid, because they include padding.
        """
        if self.clip is not None or self.weight_hr is not None:
            raise TypeError("an LSTM with clipped or projected states cannot be exported; choose a model without them")
        inverse = (real.flatten().long().cumsum(0) - 1).clamp(min=0)
        dense = x[inverse].view(real.shape[0], real.shape[1], x.shape[-1])
        zero = x.new_zeros(1, dense.shape[0], self.width)
        kernel: Any = getattr(torch._VF, self.cell)  # type: ignore[attr-defined]
        initial = [zero, zero] if self.cell == "lstm" else zero
        out, *after = kernel(dense, initial, self.weights(x.dtype), True, 1, 0.0, False, False, True)
        return out.flatten(0, 1)[real.flatten()], tuple(part[0] for part in after)

    def run(self, x: Tensor, sizes: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """Run the LSTM or GRU kernel on x, in which time step t has the next `sizes[t]` rows.

        Return the outputs and the final states.
        """
        if self.clip is not None:
            return run_by_steps(x, sizes, state, weights, self.cell, self.clip)
        kernel: Any = getattr(torch._VF, self.cell)  # type: ignore[attr-defined]
        initial: Any = [part.unsqueeze(0).contiguous() for part in state]
        initial = initial if self.cell == "lstm" else initial[0]
        options = (True, 1, 0.0, self.training, False)  # biases, layers, dropout, training, bidirectional
        if int(sizes[0]) == int(sizes[-1]):
            dense = x.view(len(sizes), int(sizes[0]), -1)
            out, *after = kernel(dense, initial, weights, *options, False)
            out = out.flatten(0, 1)
        else:
            out, *after = kernel(x, sizes, initial, weights, *options)
        return out, tuple(part[0] for part in after)


class FlattenWeights(torch.autograd.Function):
    """An autograd function that copies weights into one contiguous block of memory, as cuDNN requires, with another dtype."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        """Return copies of the weights with the dtype `kind` that share one contiguous block of memory."""
        ctx.kinds = [weight.dtype for weight in weights]
        sizes = [weight.numel() for weight in weights]
        parts = torch.split(torch.empty(sum(sizes), dtype=kind, device=weights[0].device), sizes)
        made = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
        torch._foreach_copy_(made, weights)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of each weight, cast to that weight's dtype."""
        made = [torch.empty_like(one, dtype=kind) for one, kind in zip(gradients, ctx.kinds, strict=True)]
        torch._foreach_copy_(made, gradients)
        return (None, *made)


def kernel_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which recurrent cells compute: that of x, or fp32 if cuDNN does not support bf16."""
    old = x.is_cuda and (torch.backends.cudnn.version() or 0) < CUDNN_WITH_BF16  # type: ignore[no-untyped-call]
    return torch.float32 if old and x.dtype == torch.bfloat16 else x.dtype


def run_by_steps(
    x: Tensor,
    sizes: Tensor,
    state: CellState,
    weights: list[Tensor],
    cell: CellKind = "lstm",
    clip: tuple[float, float] | None = None,
) -> tuple[Tensor, CellState]:
    """Run an LSTM or GRU in a loop over time steps, where step t has the next `sizes[t]` rows of x.

    Return the outputs and final states. `clip` has the bounds of cell states and of projected hidden states (None: no
    bounds).
    """
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
            kept = torch.sigmoid(update + update_again)
            after: CellState = (kept * old[0] + (1 - kept) * candidate,)
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
    """A recurrent layer with variational dropout of its output and, if `residual`, a residual connection."""

    def __init__(self, cells: RecurrentCells, dropout: float = 0.0, residual: bool = False) -> None:
        super().__init__()
        assert not residual or cells.inputs == cells.outputs
        self.cells, self.residual = cells, residual
        self.dropout = VariationalDropout(dropout)

    def forward(
        self, x: Tensor, rows: TimeMajorRows, before: CellState | None, window: int | None
    ) -> tuple[Tensor, CellState]:
        """Run the recurrent layer on x, (n, inputs), from the state `before`; return (n, outputs) and the final state.

        Tokens are in the time-major order of `rows`; BPTT is truncated after `window` time steps (None: never).
        """
        out, state = self.cells(x, rows, before, window)
        out = self.dropout(out, rows)
        return (x + out if self.residual else out), state


def has_recurrent_layers(root: nn.Module) -> bool:
    """Return whether a network has recurrent layers, which need lengths on the host and so rule out CUDA graphs."""
    return any(isinstance(module, RecurrentCells | nn.RNNBase) for module in root.modules())
