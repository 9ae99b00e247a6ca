"""Vectors of words from their spelling (Kim et al., 2016; Peters et al., 2018, ELMo): filters over letters, and highways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear
from pretune.packed import Packed
from pretune.runtime.errors import PretuneError


class Highway(nn.Module):
    """g · relu(x W) + (1 - g) · x with a gate g = σ(x V) (Srivastava et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform, self.gate = Linear(width, width), Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(m, width)."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class Filters(nn.Module):
    """As many filters as asked for, of `width` letters each; of each, its highest value in a word."""

    def __init__(self, vectors: int, width: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, vectors, width).uniform_(-0.05, 0.05))
        self.bias = nn.Parameter(torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        """(words, vectors, letters) → (words, count)."""
        return F.conv1d(x, self.weight.to(x.dtype), self.bias.to(x.dtype)).amax(-1)


class SpelledEmbeddings(nn.Module):
    """Vectors of tokens from their spelling, column `characters`: any word has one. Equal spellings are computed once."""

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
        """`filters` are pairs of how many letters they see and how many there are; `vectors` is the width of a letter's
        vector; words have `letters` symbols; `vocabulary` is only how many words can be told from one another."""
        super().__init__()
        self.vocabulary, self.width, self.letters, self.activation = vocabulary, width, letters, activation
        self.symbols = nn.Parameter(torch.empty(symbols - 1, vectors).normal_())  # symbol 0, of no word, is a zero
        self.filters = nn.ModuleList(Filters(vectors, letters_seen, count) for letters_seen, count in filters)
        total = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(highways))
        self.project = Linear(total, width)
        self.dropout = Dropout(dropout)
        self.compute = torch.float32  # the type of everything that follows
        self.filter_weights = sum(seen * count * vectors * (letters - seen + 1) for seen, count in filters)  # a word

    @property
    def tokens(self) -> Tensor:
        """The vectors of letters: there are none of tokens, and heads have matrices of their own."""
        return self.symbols

    def forward(self, packed: Packed) -> Tensor:
        """(n, letters) symbols → (n, width)."""
        if "characters" not in packed.columns:
            raise PretuneError("this model reads words by their letters; give it a tokenizer of the kind characters")
        spelled = packed.columns["characters"].long()
        first, place = distinct(spelled)
        x = self.dropout(self.words(spelled[first]))
        return x[place]

    def words(self, spelled: Tensor) -> Tensor:
        """(m, letters) → (m, width)."""
        table = torch.cat([self.symbols.new_zeros(1, self.symbols.shape[1]), self.symbols])
        letters = F.embedding(spelled, table).to(self.compute).transpose(1, 2)
        x = self.activation(torch.cat([filters(letters) for filters in self.filters], 1))
        for highway in self.highways:
            x = highway(x)
        out: Tensor = self.project(x)
        return out


def distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(m,) a place of each distinct row, and (n,) which of these each row is.

    >>> first, place = distinct(torch.tensor([[1, 2], [3, 4], [1, 2]]))
    >>> torch.tensor([[1, 2], [3, 4], [1, 2]])[first][place].tolist()
    [[1, 2], [3, 4], [1, 2]]
    """
    # Two rows with one hash of 64 bits are rarer than any mistake a machine makes.
    powers = torch.arange(1, rows.shape[1] + 1, device=rows.device) * 0x9E3779B97F4A7C1 | 1
    keys = ((rows + 1) * powers * ((rows << 20) + powers)).sum(1)
    found, place = torch.unique(keys, return_inverse=True)
    first = torch.zeros_like(found).scatter_(0, place, torch.arange(len(rows), device=rows.device))
    return first, place
