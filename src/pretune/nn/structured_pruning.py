"""Structured pruning: removes attention heads or feed-forward units, that is, rows and columns of their matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pretune.nn.attention.multi_head import Attention, CrossAttention
from pretune.nn.feed_forward import FeedForward, GatedFeedForward
from pretune.nn.linear import Linear

HEADED = (Attention, CrossAttention)
OPENED = (FeedForward, GatedFeedForward)


def size(module: nn.Module) -> int:
    """Return the number of heads of an attention layer, or of inner units of a feed-forward network.

    >>> size(FeedForward(8, 32))
    32
    """
    if isinstance(module, HEADED):
        return module.heads
    assert isinstance(module, OPENED)
    return module.output.in_features


def narrow(module: nn.Module, kept: Sequence[int]) -> None:
    """Keep only the attention heads, or inner units, with these indices.

    >>> network = FeedForward(8, 32)
    >>> narrow(network, [0, 5])
    >>> tuple(network.output.weight.shape)
    (8, 2)
    """
    chosen = torch.as_tensor(kept, dtype=torch.long)
    if isinstance(module, HEADED):
        inputs = [module.qkv] if isinstance(module, Attention) else [module.query, module.key_value]
        width, module.heads = module.head_width, len(kept)
    else:
        assert isinstance(module, OPENED)
        inputs, width = [module.inner], 1
    for linear in inputs:
        keep_rows(linear, chosen, width)
    keep_columns(module.output, chosen, width)


def keep_rows(linear: Linear, kept: Tensor, width: int) -> None:
    """Keep some outputs of a linear layer, in groups of `width`, in each of its stacked matrices."""
    for name, tensor in list(linear.named_parameters(recurse=False)):
        parts = tensor.detach().view(linear.stacked, -1, width, *tensor.shape[1:])
        taken = parts.index_select(1, kept.to(tensor.device)).flatten(0, 2)
        setattr(linear, name, nn.Parameter(taken, requires_grad=tensor.requires_grad))
    linear.out_features = linear.weight.shape[0]


def keep_columns(linear: Linear, kept: Tensor, width: int) -> None:
    """Keep some inputs of a linear layer, in groups of `width`."""
    weight = linear.weight
    parts = weight.detach().view(weight.shape[0], -1, width)
    taken = parts.index_select(1, kept.to(weight.device)).flatten(1)
    linear.weight = nn.Parameter(taken, requires_grad=weight.requires_grad)
    linear.in_features = taken.shape[1]
