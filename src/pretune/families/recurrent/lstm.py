"""LSTM and GRU language models: AWD-LSTM, ULMFiT, and semi-supervised sequence learning.

Merity et al., 2018 (arXiv:1708.02182); Howard and Ruder, 2018 (arXiv:1801.06146); Dai and Le, 2015 (arXiv:1511.01432).
There is no published checkpoint layout; parameter names are pretune's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pretune.backbones.recurrent import RecurrentBackbone
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize_uniform
from pretune.nn.output_heads import vocabulary_head
from pretune.nn.recurrent import CellKind, RecurrentCells, RecurrentLayer
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class LSTMConfig:
    """The configuration of an LSTM or GRU language model: one field per key of config.json."""

    vocab_size: int = 33278
    embedding_size: int = 400
    hidden_size: int = 1150
    num_hidden_layers: int = 3
    cell: CellKind = "lstm"
    tie_word_embeddings: bool = True  # the top layer then has the width of the embeddings
    word_dropout: float = 0.1  # embedding dropout: whole words, one mask per step
    input_dropout: float = 0.65  # variational dropout of the embeddings
    hidden_dropout: float = 0.2  # variational dropout between layers
    output_dropout: float = 0.4
    weight_drop: float = 0.5  # DropConnect of the recurrent weights
    bptt: int | None = None  # time steps of truncated backpropagation; None: all
    backward: bool = False  # read texts in reverse
    initializer_range: float = 0.1  # of the token embedding


def build(config: LSTMConfig) -> RecurrentBackbone:
    """Build the LSTM or GRU backbone from its configuration."""
    top = config.embedding_size if config.tie_word_embeddings else config.hidden_size
    widths = [config.embedding_size, *[config.hidden_size] * (config.num_hidden_layers - 1), top]
    dropouts = [config.hidden_dropout] * (config.num_hidden_layers - 1) + [config.output_dropout]
    backbone = RecurrentBackbone(
        Embeddings(config.vocab_size, config.embedding_size, word_dropout=config.word_dropout),
        [
            RecurrentLayer(RecurrentCells(inputs, width, config.cell, drop=config.weight_drop), dropout)
            for (inputs, width), dropout in zip(pairwise(widths), dropouts, strict=True)
        ],
        dropout=config.input_dropout,
        window=config.bptt,
        vocabulary_head=partial(vocabulary_head, config.vocab_size, top, tied=config.tie_word_embeddings),
        backward=config.backward,
    )
    return initialize_uniform(backbone, config.initializer_range)


LSTM = Family(
    name="lstm",
    config=LSTMConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False, document=("A", "end")),
    table=NameTable(
        ("embed.tokens", "backbone.embed.tokens"),
        ("layers.{i}.{p}", "backbone.layers.{i}.cells.{p}"),
        ("lm.bias", "heads.lm.bias"),
        ("lm.{p}", "heads.lm.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "Recurrent"},
    poolings={"": "last"},
    in_transformers=False,
)
