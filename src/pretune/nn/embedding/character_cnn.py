"""Word vectors from characters by a CNN and highway layers (Kim et al., 2016; Peters et al., 2018, ELMo)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear
from pretune.nn.operation_counts import OperationSizes
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


class Highway(nn.Module):
    """A highway layer, g · relu(x W) + (1 - g) · x with a gate g = σ(x V) (Srivastava et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform, self.gate = Linear(width, width), Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply a highway layer to word vectors: (m, width) → (m, width)."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class CharacterConvolution(nn.Module):
    """A convolution of `count` filters over windows of `width` characters, followed by max pooling over the word."""

    def __init__(self, vectors: int, width: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, vectors, width).uniform_(-0.05, 0.05))
        self.bias = nn.Parameter(torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the filters to the character vectors of words: (words, vector width, characters) → (words, count)."""
        return F.conv1d(x, self.weight.to(x.dtype), self.bias.to(x.dtype)).amax(-1)


class CharacterEmbeddings(nn.Module):
    """Token vectors computed by a CNN over the characters of words, for an open vocabulary."""

    positions: None = None

    def __init__(
        self,
        vocabulary: int,
        width: int,
        filters: Sequence[tuple[int, int]],
        *,
        symbols: int = 262,
        vectors: int = 16,
        letters: int = 50,
        highways: int = 2,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        dropout: float = 0.0,
    ) -> None:
        """Build a character CNN with `highways` highway layers; `filters` are pairs of window size and number.

        `symbols` is the number of distinct characters, `vectors` the width of their embeddings, and `letters` the
        number of characters of each word.
        """
        super().__init__()
        self.vocabulary, self.width, self.letters, self.activation = vocabulary, width, letters, activation
        self.symbols = nn.Parameter(torch.empty(symbols - 1, vectors).normal_())  # symbol 0, padding, has a zero vector
        self.filters = nn.ModuleList(CharacterConvolution(vectors, window, count) for window, count in filters)
        total = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(highways))
        self.project = Linear(total, width)
        self.dropout = Dropout(dropout)
        self.compute = torch.float32  # the dtype of all computations that follow
        self.filter_weights = sum(
            window * count * vectors * (letters - window + 1) for window, count in filters
        )  # per word

    @property
    def tokens(self) -> Tensor:
        """Return the embedding table of characters, as there is no embedding table of tokens."""
        return self.symbols

    def forward(self, packed: Packed) -> Tensor:
        """Return the vectors of n words, computed from their characters: (n, width)."""
        if "characters" not in packed.columns:
            raise PretuneError(
                "this model reads the characters of words; use it with a tokenizer of the kind `characters`"
            )
        characters = packed.columns["characters"].long()
        first, place = distinct_rows(characters)
        return self.dropout(self.words(characters[first]))[place]

    def words(self, characters: Tensor) -> Tensor:
        """Return the vectors of m distinct words, given their character ids: (m, letters) → (m, width)."""
        table = torch.cat([self.symbols.new_zeros(1, self.symbols.shape[1]), self.symbols])
        letters = F.embedding(characters, table).to(self.compute).transpose(1, 2)
        x = self.activation(torch.cat([filters(letters) for filters in self.filters], 1))
        for highway in self.highways:
            x = highway(x)
        return self.project(x)

    def add_operations(self, sizes: OperationSizes) -> None:
        """Add the weights of the character filters to `sizes`, from which the FLOPs of a model are computed."""
        sizes.matrices += self.filter_weights


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of m distinct rows, and, for each of the n rows, which of the m it equals, (n,).

    >>> first, place = distinct_rows(torch.tensor([[1, 2], [3, 4], [1, 2]]))
    >>> torch.tensor([[1, 2], [3, 4], [1, 2]])[first][place].tolist()
    [[1, 2], [3, 4], [1, 2]]
    """
    # Rows are compared by a 64-bit hash; collisions are rarer than hardware errors.
    powers = torch.arange(1, rows.shape[1] + 1, device=rows.device) * 0x9E3779B97F4A7C1 | 1
    keys = ((rows + 1) * powers * ((rows << 20) + powers)).sum(1)
    found, place = torch.unique(keys, return_inverse=True)
    first = torch.zeros_like(found).scatter_(0, place, torch.arange(len(rows), device=rows.device))
    return first, place
