"""Adaptive softmax and embeddings (Grave et al., 2017, arXiv:1609.04309; Baevski and Auli, 2019, arXiv:1809.10853).

Tokens are numbered by decreasing frequency and split into clusters. Clusters of rarer tokens have narrower vectors,
projected to the width of the states, both in the embedding and in the softmax. The first softmax is over the tokens of
the first cluster and one entry per further cluster; a second softmax, within a further cluster, predicts its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.dropout import Dropout
from pretune.nn.linear import Linear, OutputLinear
from pretune.packed import Packed


class AdaptiveEmbeddings(nn.Module):
    """Adaptive token embeddings, whose vectors are `shrink` times narrower in each cluster of rarer tokens."""

    positions: None = None

    def __init__(
        self, vocabulary: int, width: int, vectors: int, cutoffs: Sequence[int], shrink: int, dropout: float = 0.0
    ) -> None:
        """Build one embedding table per cluster of tokens.

        `vectors` is the width of the first table, and each later one is `shrink` times narrower; `cutoffs` are the
        first token ids of the second and later clusters.
        """
        super().__init__()
        self.bounds = [0, *(cutoff for cutoff in cutoffs if cutoff < vocabulary), vocabulary]
        widths = [vectors // shrink**cluster for cluster in range(len(self.bounds) - 1)]
        sizes = [end - begin for begin, end in pairwise(self.bounds)]
        self.tables = nn.ParameterList(torch.empty(size, wide) for size, wide in zip(sizes, widths, strict=True))
        self.projects = nn.ModuleList(Linear(wide, width, bias=False) for wide in widths)
        self.vocabulary, self.width = vocabulary, width
        self.dropout = Dropout(dropout)
        self.compute = torch.float32  # the dtype of all computations that follow

    @property
    def tokens(self) -> Tensor:
        """Return the embedding table of the first cluster, the most frequent tokens."""
        return self.tables[0]

    def forward(self, packed: Packed) -> Tensor:
        """Return the embeddings of token ids, scaled by √width: (n,) → (n, width)."""
        x: Tensor | None = None
        for (begin, end), table, project in zip(pairwise(self.bounds), self.tables, self.projects, strict=True):
            inside = (packed.ids >= begin) & (packed.ids < end)
            vectors = F.embedding((packed.ids - begin).clamp(0, end - begin - 1), table).to(self.compute)
            own = project(vectors)
            x = own if x is None else torch.where(inside[:, None], own, x)
        assert x is not None
        return self.dropout(x * self.width**0.5)


class AdaptiveHead(nn.Module):
    """An adaptive softmax head that returns log probabilities and shares the vectors of an adaptive embedding.

    The first cluster has a projection of its own; the projections of the other clusters are shared with the embedding.
    All clusters are computed for all states: rare tokens are cheaper only because their vectors are narrow.
    """

    def __init__(self, embed: AdaptiveEmbeddings, deviation: float = 0.02) -> None:
        """Build a head on the embedding `embed`; its own weights are drawn with the standard deviation `deviation`."""
        super().__init__()
        self.embed = embed
        vectors, clusters = embed.tokens.shape[1], len(embed.tables) - 1
        self.project = nn.Parameter(torch.empty(embed.width, vectors).normal_(std=deviation))
        self.cluster = OutputLinear(vectors, clusters) if clusters else None
        if self.cluster is not None:
            nn.init.normal_(self.cluster.weight, std=deviation)
            nn.init.zeros_(self.cluster.bias)
        self.biases = nn.ParameterList(torch.zeros(len(table)) for table in embed.tables)
        self.vocabulary = embed.vocabulary

    def weights_per_target(self, tied: int) -> int:
        """Return how many weights each predicted token uses, for counting FLOPs; `tied` is ignored."""
        clusters = 0 if self.cluster is None else self.cluster.weight.numel()
        tables = sum(table.numel() for table in self.embed.tables)
        return self.project.numel() + clusters + tables + sum(x.numel() for x in self.projections())

    def projections(self) -> list[Tensor]:
        """Return the projections from hidden states to the vectors of every cluster but the first, (width, vectors)."""
        return list(self.embed.projects[1:].parameters())

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return log probabilities, (m, vocabulary), for m hidden states.

        `tokens` is the embedding table of the first cluster, with which its tokens are predicted.
        """
        kind = states.dtype
        narrow = states @ self.project.to(kind)
        first = F.linear(narrow, tokens.to(kind), self.biases[0].to(kind)).float()
        if self.cluster is None:
            return first.log_softmax(-1)
        first = torch.cat([first, self.cluster(narrow).float()], -1).log_softmax(-1)
        size = tokens.shape[0]
        parts = [first[:, :size]]
        clusters = zip(list(self.embed.tables)[1:], self.projections(), list(self.biases)[1:], strict=True)
        for number, (table, project, bias) in enumerate(clusters):
            logits = F.linear(states @ project.to(kind), table.to(kind), bias.to(kind))
            parts.append(first[:, size + number, None] + logits.float().log_softmax(-1))
        return torch.cat(parts, -1)
