"""Structured pruning: layers whose attention heads or feed-forward units can be cut out of the weight matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pretune.nn.initialization import ResidualBranch
from pretune.nn.linear import Linear


class Prunable(ResidualBranch):
    """The base class of layers whose units (attention heads or feed-forward units) can be removed."""

    output: Linear

    @property
    def units(self) -> int:
        """Return the current number of prunable units (attention heads or feed-forward units) of this layer."""
        raise NotImplementedError

    @property
    def unit_width(self) -> int:
        """Return how many columns of the output matrix belong to each unit (attention head or feed-forward unit)."""
        raise NotImplementedError

    def unit_projections(self) -> list[Linear]:
        """Return the linear layers whose rows belong to units (attention heads or feed-forward units) of this layer."""
        raise NotImplementedError

    def keep_units(self, kept: Sequence[int]) -> None:
        """Remove all units (attention heads or feed-forward units) of this layer except those at the indices `kept`."""
        chosen, width = torch.as_tensor(kept, dtype=torch.long), self.unit_width
        for linear in self.unit_projections():
            keep_rows(linear, chosen, width)
        keep_columns(self.output, chosen, width)


class PrunableHeads(Prunable):
    """An attention layer whose heads can be removed."""

    heads: int
    head_width: int

    @property
    def units(self) -> int:
        """Return the number of attention heads of the layer."""
        return self.heads

    @property
    def unit_width(self) -> int:
        """Return the width of each attention head."""
        return self.head_width

    def keep_units(self, kept: Sequence[int]) -> None:
        """Remove all attention heads but those with the indices `kept`."""
        super().keep_units(kept)
        self.heads = len(kept)


class PrunableUnits(Prunable):
    """A feed-forward network whose inner units can be removed."""

    inner: Linear

    @property
    def units(self) -> int:
        """Return the number of inner units of the feed-forward network."""
        return self.output.in_features

    @property
    def unit_width(self) -> int:
        """Return 1, as each inner unit of a feed-forward network is one column of its output matrix."""
        return 1

    def unit_projections(self) -> list[Linear]:
        """Return the first linear layer of the feed-forward network, whose rows are removed when units are pruned."""
        return [self.inner]


def keep_rows(linear: Linear, kept: Tensor, width: int) -> None:
    """Keep only some outputs of a linear layer, in place: groups of `width` rows, at the group indices `kept`.

    If the layer's weight consists of stacked matrices, this applies to each of them.
    """
    for name, tensor in list(linear.named_parameters(recurse=False)):
        parts = tensor.detach().view(linear.stacked, -1, width, *tensor.shape[1:])
        taken = parts.index_select(1, kept.to(tensor.device)).flatten(0, 2)
        setattr(linear, name, nn.Parameter(taken, requires_grad=tensor.requires_grad))
    linear.out_features = linear.weight.shape[0]


def keep_columns(linear: Linear, kept: Tensor, width: int) -> None:
    """Keep only some inputs of a linear layer, in place: groups of `width` columns, at the group indices `kept`."""
    weight = linear.weight
    parts = weight.detach().view(weight.shape[0], -1, width)
    taken = parts.index_select(1, kept.to(weight.device)).flatten(1)
    linear.weight = nn.Parameter(taken, requires_grad=weight.requires_grad)
    linear.in_features = taken.shape[1]
