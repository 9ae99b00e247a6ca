"""One vector for a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pretune.nn.layout import side_of
from pretune.nn.linear import Linear
from pretune.packed import Packed


def pool(states: Tensor, packed: Packed, how: str) -> Tensor:
    """(n, width) → (sequences, width): the state of the `start` or `last` token, the `mean` or the `max` of all.

    `rising` is a mean whose weights grow from 0 to 1 along the sequence (Dai and Le, 2015); `concat` is the last, the max and the mean side by side (Howard and Ruder, 2018): three times the width.

    Of a sequence without tokens, as families that put nothing around a text can have it, it is 0. Means are in fp32, whatever
    the states are in: where texts differ little, sums of 16 bits would lose the difference.

    >>> from pretune.packed import pack_lists
    >>> pool(torch.tensor([[1.0], [3.0], [5.0]]), pack_lists([[7, 7], [7]]), "mean").tolist()
    [[2.0], [5.0]]
    """
    starts, ends = packed.offsets[:-1].long(), packed.offsets[1:].long()
    sequences, empty = starts.shape[0], (starts == ends)[:, None]
    tokens = states.shape[0]  # not len(packed): that is a number, which a traced graph would keep for all batches
    if not len(packed):
        return states.new_zeros(sequences, states.shape[1])
    if how == "concat":
        return torch.cat([pool(states, packed, each) for each in ("last", "max", "mean")], -1)
    if how == "start":
        return states[starts.clamp(max=tokens - 1)].masked_fill(empty, 0.0)
    if how == "last":
        return states[(ends - 1).clamp(min=0)].masked_fill(empty, 0.0)
    owner = side_of(packed).sequence.long()
    if how == "rising":
        place = (torch.arange(tokens, device=owner.device) - starts[owner]).float()
        last = (ends - starts - 1).clamp(min=1).float()[owner]
        weights = torch.where((ends - starts)[owner] == 1, 1.0, place / last)
        total = weights.new_zeros(sequences).index_add(0, owner, weights).clamp(min=1e-6)
        return sums(states * (weights / total[owner])[:, None], owner, sequences)
    if how == "mean":
        return sums(states, owner, sequences) / (ends - starts).clamp(min=1)[:, None]
    lowest = torch.finfo(states.dtype).min
    index = owner[:, None].expand_as(states)
    highest = states.new_full((sequences, states.shape[1]), lowest).scatter_reduce(0, index, states, "amax")
    return highest.masked_fill(empty, 0.0)


def sums(states: Tensor, owner: Tensor, sequences: int) -> Tensor:
    """(n, width) → (sequences, width) in fp32: the sum of those that a sequence owns."""
    return states.new_zeros(sequences, states.shape[1], dtype=torch.float32).index_add(0, owner, states.float())


class AttentivePool(nn.Module):
    """The mean of all states, weighted by a learned look at each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.look = Linear(width, 1)

    def forward(self, states: Tensor, packed: Packed) -> Tensor:
        """(n, width) → (sequences, width)."""
        sequences = packed.offsets.shape[0] - 1
        owner = side_of(packed).sequence.long()
        looks = self.look(states)[:, 0].float()  # (n,)
        highest = looks.new_full((sequences,), torch.finfo(looks.dtype).min).scatter_reduce(0, owner, looks, "amax")
        weights = (looks - highest.detach()[owner]).exp()
        total = weights.new_zeros(sequences).index_add(0, owner, weights)
        return sums(states * (weights / total[owner])[:, None], owner, sequences)
