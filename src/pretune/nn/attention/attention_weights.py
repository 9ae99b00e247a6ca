"""Attention weights as tensors, for distillation and analysis; attention kernels never materialize them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pretune.nn.attention.multi_head import AttentionContext, SelfAttention, ShowsLogits
from pretune.nn.attention.patterns import Pattern, effective_pattern
from pretune.nn.attention.query_key_layout import AttentionLayout, padded_groups
from pretune.nn.attention.scaled_dot_product import attention_mask, padded_weights
from pretune.nn.blocks import PreNorm
from pretune.runtime.errors import PretuneError


def attention_weights(layer: nn.Module, x: Tensor, layout: AttentionLayout, batch: Pattern | None = None) -> Tensor:
    """Return the attention weights of a Transformer layer, averaged over heads: (n, tokens of the longest sequence).

    `x`, (n, width), is the layer's input; `layout` has the sequence boundaries, and `batch` the attention pattern of
    the batch, if any. Row i has the weights of token i over its own sequence, then 0.
    """
    wrapper, attention = find_attention(layer)
    inner = wrapper.norm(x) if isinstance(wrapper, PreNorm) else x  # type: ignore[operator]
    qkv = attention.qkv(inner).view(-1, 3, attention.heads, attention.head_width)
    if attention.norm is not None or attention.rotary is not None:
        qkv = attention.normalize_and_rotate(qkv, layout)
    q, k, _ = qkv.unbind(1)
    groups = padded_groups(layout).groups
    longest = max(group.keys.shape[1] for group in groups)
    rows, places = [], []
    for number, group in enumerate(groups):
        own, keys = q[group.queries].transpose(1, 2), k[group.keys].transpose(1, 2)  # (b, heads, L, d)
        logits = own @ keys.transpose(-2, -1) * attention.head_width**-0.5
        mask = attention_mask(layout, group, effective_pattern(attention.pattern, batch), number)
        if mask is not None:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        weights = logits.softmax(-1).mean(1)  # (b, L, L)
        rows.append(nn.functional.pad(weights, (0, longest - weights.shape[-1]))[group.real_queries])
        places.append(group.queries[group.real_queries])
    return torch.cat(rows)[torch.cat(places).argsort()]


def find_attention(layer: nn.Module) -> tuple[nn.Module, SelfAttention]:
    """Return the residual block around the self-attention of a Transformer layer, and the self-attention itself."""
    for module in layer.modules():
        part = getattr(module, "part", None)
        if isinstance(part, SelfAttention):
            return module, part
    raise PretuneError(
        "attention weights can only be distilled between models with plain self-attention; "
        "remove `attention` from the terms that the distillation matches"
    )


@contextmanager
def recorded_attention_weights(network: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which each self-attention layer that runs in the `with` block appends its attention weights.

    Each entry is a tensor (sequences, heads, L, L), where L is the length of the longest sequence.
    """
    found: list[Tensor] = []

    def record(layer: Any, given: tuple[Tensor, AttentionContext]) -> None:
        x, context = given
        inputs = layer.logit_inputs(x, context)
        if inputs is not None:
            found.append(padded_weights(inputs.q, inputs.k, context.layout, inputs.pattern, inputs.score, inputs.scale))

    layers = [module for module in network.modules() if isinstance(module, ShowsLogits)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers if isinstance(layer, nn.Module)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
