"""Transformer layers: attention and feed-forward sublayers, each with a residual connection and a norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretune.nn.attention.multi_head import AttentionContext, SelfAttention
from pretune.nn.dropout import Dropout
from pretune.nn.kernels import supports_custom_kernels
from pretune.nn.linear import LayerNorm
from pretune.nn.saved_activations import SavedActivations


def select_tokens(part: nn.Module, x: Tensor, y: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
    """Return the input `x` of a residual block and the output `y` of its sublayer `part`, for the tokens of `context.at`.

    Without them, both stay as they are: (n, width) each. With m tokens, both become (m, width); `SelfAttention` computes
    only these, and other sublayers compute all tokens.
    """
    if context.at is None:
        return x, y
    return x[context.at], y if isinstance(part, SelfAttention) else y[context.at]


class PostNorm(nn.Module):
    """A residual block with post-normalization around the sublayer `part`, norm(x + part(x)): BERT, GPT."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.part, self.norm, self.dropout = part, norm, Dropout(dropout)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply a residual block with post-normalization to hidden states: (n, width) → (n, width)."""
        x, y = select_tokens(self.part, x, self.part(x, context), context)
        plain = isinstance(self.norm, LayerNorm) and self.norm.bias is not None
        if self.training and plain and supports_custom_kernels(x):
            from pretune.nn.kernels.add_norm import add_norm

            norm, dropout = self.norm, self.dropout
            salt = dropout.salt_for_depth(context.depth)
            out: Tensor = add_norm(x, y, norm.weight, norm.bias, dropout.seed, salt, dropout.rate, norm.eps)[0]
        else:
            out = self.norm(x + self.dropout(y, context.depth))
        return out

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.part)
        saved.add(self.norm)


class PreNorm(nn.Module):
    """A residual block with pre-normalization around the sublayer `part`, x + part(norm(x)): GPT-2 and later models."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.part, self.norm, self.dropout = part, norm, Dropout(dropout)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply a residual block with pre-normalization to hidden states: (n, width) → (n, width)."""
        x, y = select_tokens(self.part, x, self.part(self.norm(x), context), context)
        return x + self.dropout(y, context.depth)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.part)
        saved.add(self.norm)


class TransformerLayer(nn.Module):
    """A sequence of named sublayers: `TransformerLayer(attention=PostNorm(…), feed_forward=PostNorm(…))`."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.recompute = False  # activation checkpointing: keep no activations, and recompute them in the backward pass

    @classmethod
    def normalized(
        cls,
        block: type[PostNorm] | type[PreNorm],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
        **parts: nn.Module,
    ) -> Self:
        """Build a layer from named attention and feed-forward modules (`parts`), each in a residual block.

        `block` is PreNorm or PostNorm, and `norm` creates the norm of each block.
        """
        return cls(**{name: block(part, norm(), dropout) for name, part in parts.items()})

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply all sublayers of a Transformer layer to hidden states: (n, width) → (n, width)."""
        if self.recompute and self.training:
            # Dropout depends on its seed alone, so there is no generator state to preserve.
            return checkpoint(self.run, x, context, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        return self.run(x, context)

    def run(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply all sublayers of a Transformer layer, without activation checkpointing: (n, width) → (n, width).

        If `context.at` is set, the result is (m, width), for its m tokens alone. The sublayers after the first, which is
        attention, then get the states of these tokens only.
        """
        for part in self.children():
            x = part(x, context)
            if context.at is not None:
                context = replace(context, at=None)
        return x

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add_layer(self.children())


class LayerSequence(nn.Sequential):
    """Several layers that run one after the other as a single layer of a stack (an inner group of ALBERT)."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:  # type: ignore[override]
        """Apply several layers, one after the other, to hidden states: (n, width) → (n, width)."""
        for number, layer in enumerate(self, 1):
            x = layer(x, context if number == len(self) else replace(context, at=None))
        return x
