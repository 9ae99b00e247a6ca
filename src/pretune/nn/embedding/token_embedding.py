"""Embedding layers: from token ids to vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.nn.attention.query_key_layout import token_layout
from pretune.nn.dropout import Dropout
from pretune.nn.initialization import InitializationScheme
from pretune.nn.linear import Linear
from pretune.nn.saved_activations import SavedActivations
from pretune.packed import Packed


class ColumnEmbedding(nn.Module):
    """An embedding of the per-token feature `column`; batches without it use row `absent` of the table (None: 0)."""

    def __init__(self, column: str, values: int, width: int, absent: int | None = 0) -> None:
        super().__init__()
        self.column, self.absent = column, absent
        self.weight = nn.Parameter(torch.empty(values, width))

    def forward(self, packed: Packed) -> Tensor:
        """Return embeddings of a per-token feature such as language, (n, width) or broadcastable to that shape."""
        if self.column in packed.columns:
            return F.embedding(packed.columns[self.column], self.weight)
        return self.weight.new_zeros(()) if self.absent is None else self.weight[self.absent]


class Embeddings(nn.Module):
    """Token embeddings plus optional position and segment embeddings, then norm and dropout."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        positions: nn.Module | None = None,
        segments: int = 0,
        columns: Iterable[ColumnEmbedding] = (),
        scale: float = 1.0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        project: Linear | None = None,
        query: bool = False,
        word_dropout: float = 0.0,
        padding: int | None = None,
    ) -> None:
        """Build token embeddings; `columns` are embeddings of further per-token features to add (languages, tasks).

        `scale` multiplies the token vectors only (√width in the Transformer); `project` maps the embeddings to another
        width; with `query`, tokens of the query stream, which are to be predicted, share one learned vector (XLNet);
        `word_dropout` is the fraction of the vocabulary whose vectors are set to 0 in a training step (Gal and
        Ghahramani, 2016); tokens with the id `padding` are not counted as positions (MPNet).
        """
        super().__init__()
        self.scale, self.padding = scale, padding
        self.tokens = nn.Parameter(torch.empty(vocabulary, width))
        self.query = nn.Parameter(torch.empty(1, 1, width)) if query else None
        self.has_unused_parameters = query  # some of its parameters are unused in some batches
        self.positions = positions
        self.segments = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.columns = nn.ModuleDict({lookup.column: lookup for lookup in columns})
        self.norm = norm if norm is not None else nn.Identity()
        self.dropout = Dropout(dropout)
        self.word_dropout = Dropout(word_dropout)
        self.project = project
        self.compute = torch.float32  # the dtype of all computations that follow

    def initialize_parameters(self, scheme: InitializationScheme) -> None:
        """Initialize the token, segment and query-stream (XLNet) embeddings by an initialization scheme."""
        for table in self.parameters(recurse=False):
            scheme.draw_embedding(table)

    @property
    def vocabulary(self) -> int:
        """Return the vocabulary size: the number of rows in the token embedding table."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """Return the width of the embeddings, after the projection if there is one."""
        return self.tokens.shape[1] if self.project is None else self.project.out_features

    def vectors(self, packed: Packed) -> Tensor:
        """Return the embeddings of n token ids before the final projection: (n, width of the token vectors)."""
        x = F.embedding(packed.ids, self.tokens)
        if self.training and self.word_dropout.rate:
            x = x * self.word_dropout(x.new_ones(self.vocabulary))[packed.ids, None]
        if self.query is not None and "stream" in packed.columns:
            x = torch.where(packed.columns["stream"][:, None] > 0, self.query[0], x)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            counted = packed.positions if self.padding is None else positions_without_padding(packed, self.padding)
            x = x + self.positions(counted)
        if self.segments is not None:
            segment = packed.columns.get("segment")
            x = x + (self.segments[0] if segment is None else F.embedding(segment, self.segments))
        for lookup in self.columns.values():
            x = x + lookup(packed)
        if "feature_vectors" in packed.columns:  # of numeric features (see FeatureEmbedding)
            x = x + packed.columns["feature_vectors"]
        return self.dropout(self.norm(x.to(self.compute)))

    def forward(self, packed: Packed) -> Tensor:
        """Return the embeddings of token ids: (n,) → (n, width)."""
        x = self.vectors(packed)
        return x if self.project is None else self.project(x)

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that the embeddings keep for the backward pass to `saved`; lookups keep only ids."""
        saved.add(self.norm)
        if self.project is not None:
            saved.add(self.project)


def positions_without_padding(packed: Packed, padding: int) -> Tensor:
    """Return token positions, (n,), that do not count tokens with the id `padding`, whose position is -1.

    >>> from pretune.packed import pack_lists
    >>> positions_without_padding(pack_lists([[5, 1, 6], [1, 7]]), padding=1).tolist()
    [0, -1, 1, -1, 0]
    """
    is_padding = (packed.ids == padding).long()
    running = is_padding.cumsum(0)  # across all sequences
    first = token_layout(packed).bounds[0].long()  # start of each token's sequence
    skipped = running - (running - is_padding)[first]
    return torch.where(is_padding > 0, -1, packed.positions - skipped)


class ProjectedEmbeddings(nn.Module):
    """Token embeddings of another network, from the batch column `vectors`, projected to this network's width."""

    positions: None = None

    def __init__(self, vectors: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.project = Linear(vectors, width) if vectors != width else nn.Identity()

    def forward(self, packed: Packed) -> Tensor:
        """Return the projected token embeddings of the other network: (n, its width) → (n, width)."""
        return self.project(packed.columns["vectors"])

    def add_saved_activations(self, saved: SavedActivations) -> None:
        """Add the activations that this layer keeps for the backward pass to `saved`."""
        saved.add(self.project)
