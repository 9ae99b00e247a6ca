"""Output heads: layers between hidden states and predictions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.feed_forward import Activation
from pretune.nn.linear import Linear, OutputLinear
from pretune.nn.operation_counts import weights_per_target


class TiedVocabularyHead(nn.Module):
    """A language model head tied to the token embedding, after an optional transform of the hidden states (BERT)."""

    def __init__(self, vocabulary: int, transform: nn.Module | None = None, bias: bool = True) -> None:
        super().__init__()
        self.transform = transform if transform is not None else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Compute logits, (m, vocabulary), from m hidden states, (m, width).

        `tokens` is the token embedding, (vocabulary, vector width), which serves as the output matrix.
        """
        states = self.transform(states)
        bias = None if self.bias is None else self.bias.to(states.dtype)
        return F.linear(states, tokens.to(states.dtype), bias)

    def weights_per_target(self, tied: int) -> int:
        """Return how many weights each predicted token uses: those of the transform, and the `tied` token embedding."""
        return tied + weights_per_target(self.transform, tied)

    def logits_per_target(self, vocabulary: int) -> int:
        """Return how many logits are computed for each predicted token: one per row of the token embedding."""
        return vocabulary


class UntiedVocabularyHead(nn.Module):
    """A language model head with its own output matrix, after an optional transform of the hidden states."""

    def __init__(self, vocabulary: int, width: int, bias: bool = False, transform: nn.Module | None = None) -> None:
        """Build a language-model head with its own output matrix; `width` is the width of transformed states."""
        super().__init__()
        self.transform = transform if transform is not None else nn.Identity()
        self.output = OutputLinear(width, vocabulary, bias)
        self.vocabulary = vocabulary

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Compute logits, (m, vocabulary), from m hidden states, (m, width); `tokens` is not used."""
        return self.output(self.transform(states))

    def logits_per_target(self, vocabulary: int) -> int:
        """Return how many logits are computed for each predicted token; the vocabulary of the embedding is ignored."""
        return self.vocabulary


def vocabulary_head(
    vocabulary: int, width: int, *, tied: bool, transform: nn.Module | None = None, bias: bool = True
) -> TiedVocabularyHead | UntiedVocabularyHead:
    """Build a language-model head, tied to the token embedding or with an output matrix of its own.

    `transform` is applied to the hidden states before the output matrix, and `width` is the width of its results.
    """
    if tied:
        return TiedVocabularyHead(vocabulary, transform, bias)
    return UntiedVocabularyHead(vocabulary, width, bias, transform)


class FixedBias(nn.Module):
    """A language model head with a constant bias added to its logits (BART's final_logits_bias)."""

    bias: Tensor

    def __init__(self, head: nn.Module, vocabulary: int) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("bias", torch.zeros(1, vocabulary))

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Compute logits, (m, vocabulary), from m hidden states, (m, width), and the token embedding `tokens`."""
        logits: Tensor = self.head(states, tokens)
        return logits + self.bias.to(logits.dtype)


class Scale(nn.Module):
    """Multiplication by a constant, which T5 applies to hidden states before the output matrix."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states x multiplied by the layer's constant."""
        return x * self.factor


class DenseTransform(nn.Module):
    """A dense layer, norm(activation(x W)): BERT's transform before the logits, or BERT's pooler (tanh, no norm)."""

    def __init__(
        self, width: int, activation: Activation, norm: nn.Module | None = None, bias: bool = True, *, outputs: int = 0
    ) -> None:
        """Build a dense layer; `outputs` is the output width if it is not `width`, as in ELECTRA and ALBERT."""
        super().__init__()
        self.dense = Linear(width, outputs or width, bias)
        self.activation = activation
        self.norm = norm if norm is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the dense layer to hidden states: (m, width) → (m, outputs)."""
        return self.norm(self.activation(self.dense(x)))


class ResidualFeedForward(nn.Module):
    """A residual feed-forward network norm(x + feed_forward(x)), which BigBird applies before answer-span logits."""

    def __init__(self, feed_forward: nn.Module, norm: nn.Module, dropout: float = 0.0) -> None:
        """Build a residual block around `feed_forward`; `dropout` applies to its input and its output."""
        super().__init__()
        self.feed_forward, self.norm = feed_forward, norm
        self.dropout_inputs, self.dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the residual feed-forward network to hidden states: (m, width) → (m, width)."""
        return self.norm(x + self.dropout(self.feed_forward(self.dropout_inputs(x))))


class TokenHead(nn.Module):
    """A linear classifier of tokens, after an optional transform (as in ModernBERT) and dropout."""

    def __init__(self, width: int, outputs: int, transform: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.transform = transform
        self.dropout = Dropout(dropout)
        self.output = OutputLinear(width, outputs)

    def forward(self, states: Tensor) -> Tensor:
        """Compute the logits of tokens from hidden states: (m, width) → (m, outputs)."""
        return self.output(self.dropout(self.transform(states)))
