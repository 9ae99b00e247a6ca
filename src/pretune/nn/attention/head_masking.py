"""Mask single attention heads, to measure how a network's output depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from pretune.nn.attention.multi_head import AttentionContext, ShowsLogits


@contextmanager
def masked_head(network: nn.Module, layer: int, head: int) -> Iterator[None]:
    """Set the output of one self-attention head of a Transformer to 0 inside the `with` block.

    Parameters
    ----------
    network
        A Transformer stack; of layers that share weights, only the one at the given depth is changed.
    layer, head
        The indices of the layer, in the order in which layers run, and of the head, both from 0.
    """
    hooks = []
    for attention in network.modules():
        if not isinstance(attention, ShowsLogits):
            continue
        part: Any = attention
        depths: list[int] = []  # the depth at which the module runs

        def keep_depth(module: nn.Module, args: tuple[Tensor, AttentionContext], depths: list[int] = depths) -> None:
            depths[:] = [args[1].depth]

        def mask(
            module: nn.Module, args: tuple[Tensor], depths: list[int] = depths, width: int = part.head_width
        ) -> tuple[Tensor] | None:
            if depths != [layer]:
                return None
            kept = args[0].clone()
            kept[:, head * width : (head + 1) * width] = 0
            return (kept,)

        hooks += [part.register_forward_pre_hook(keep_depth), part.output.register_forward_pre_hook(mask)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
