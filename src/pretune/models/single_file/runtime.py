"""Simple versions of packed sequences and attention, which take the place of pretune's in exported files.

A class or a function here replaces the one of the same name elsewhere in pretune. Parameters and fields that a version here does not
have, such as dropout, kernels and key-value caches, are left out of the exported code that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ScoreMod = Callable[[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]], Tensor]


@dataclass
class Packed:
    """Token sequences, concatenated without padding between them."""

    ids: Tensor  # (n,)
    offsets: Tensor  # (sequences + 1,)
    columns: dict[str, Tensor]  # (n,) each

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> Tensor:
        """The position of each token within its sequence, (n,)."""
        return self.columns["position"]

    @property
    def max_length(self) -> int:
        """The length of the longest sequence."""
        return int(self.offsets.diff().max())

    @cached_property
    def sequence(self) -> Tensor:
        """The index of the sequence of each token, (n,)."""
        lengths = self.offsets.diff()
        return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The index of the first token of each token's sequence, and of the token after its last one, (n,) each."""
        return self.offsets[self.sequence], self.offsets[self.sequence + 1]

    @cached_property
    def padded(self) -> Tensor:
        """The index of the token at each place of the padded sequences, (sequences, length); -1 for padding."""
        steps = torch.arange(self.max_length, device=self.ids.device)
        return torch.where(steps < self.offsets.diff()[:, None], self.offsets[:-1, None] + steps, -1)


@dataclass
class AttentionLayout:
    """The queries and keys of an attention call: query sequence i attends only to key sequence i."""

    queries: Packed
    keys: Packed
    cache: dict[Any, Any] = field(default_factory=dict)  # shared by the layers of one forward pass


@dataclass
class AttentionContext:
    """The inputs of an attention layer besides hidden states, such as the layout of its sequences."""

    layout: AttentionLayout
    score_mod: ScoreMod | None = None
    distances: Tensor | None = None


@dataclass
class BackboneOutput:
    """The hidden states (tokens, width) of each requested layer."""

    layers: list[Tensor]

    @property
    def last(self) -> Tensor:
        """The hidden states of the topmost requested layer, (tokens, width)."""
        return self.layers[-1]


def token_layout(packed: Packed) -> Packed:
    """Return packed tokens unchanged, as the queries or keys of an attention call."""
    return packed


def self_layout(packed: Packed) -> AttentionLayout:
    """Return the layout of self-attention within packed sequences."""
    return AttentionLayout(packed, packed)


def attend_self(qkv: Tensor, layout: AttentionLayout, pattern: tuple[int, int]) -> Tensor:
    """Compute self-attention of stacked queries, keys and values: (n, 3, heads, d) → (n, heads, d)."""
    q, k, v = qkv.unbind(1)
    return attend(q, k, v, layout, pattern)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AttentionLayout,
    pattern: tuple[int, int],
    score: ScoreMod | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute attention of queries, keys and values, (n, heads, d) each, within each sequence: (n, heads, d).

    `pattern` is how far back and ahead queries attend, -1 for no limit.
    """
    queries, keys = layout.queries.padded, layout.keys.padded  # (sequences, length)
    q, k, v = q[queries].transpose(1, 2), k[keys].transpose(1, 2), v[keys].transpose(1, 2)
    mask = (keys >= 0)[:, None, None, :]
    if score is not None or pattern != (-1, -1):
        query = {name: column[queries][:, None, :, None] for name, column in layout.queries.columns.items()}
        key = {name: column[keys][:, None, None, :] for name, column in layout.keys.columns.items()}
    if pattern != (-1, -1):
        distance = query["position"] - key["position"]
    if pattern[0] >= 0:
        mask = mask & (distance <= pattern[0])
    if pattern[1] >= 0:
        mask = mask & (-distance <= pattern[1])
    if score is None:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    else:
        query["row"], key["row"] = queries[:, None, :, None], keys[:, None, None, :]
        heads = torch.arange(q.shape[1], device=q.device)[:, None, None]
        logits = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        logits = score(logits, heads, query, key).masked_fill(~mask, torch.finfo(logits.dtype).min)
        mixed = logits.softmax(-1) @ v
    return mixed.transpose(1, 2)[queries >= 0]
