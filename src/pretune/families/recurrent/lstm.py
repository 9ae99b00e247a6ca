"""Language models of LSTM or GRU layers: AWD-LSTM (Merity et al., 2018, arXiv:1708.02182), ULMFiT (Howard and Ruder, 2018,
arXiv:1801.06146), semi-supervised sequence learning (Dai and Le, 2015, arXiv:1511.01432).

No layout of them is published that others read: names are our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from torch import nn

from pretune.backbones.recurrent import Recurrent
from pretune.families.family import Family, Table
from pretune.nn.embeddings import Embeddings
from pretune.nn.initialization import initialize_evenly
from pretune.nn.output_heads import OwnVocabularyHead, VocabularyHead
from pretune.nn.recurrent import Cell, Recurrence, RecurrentLayer
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class LSTMConfig:
    """Keys of config.json."""

    vocab_size: int = 33278
    embedding_size: int = 400
    hidden_size: int = 1150
    num_hidden_layers: int = 3
    cell: Cell = "lstm"
    tie_word_embeddings: bool = True  # then the top layer is as wide as the token vectors
    word_dropout: float = 0.1  # share of the vocabulary that is dropped for a step
    input_dropout: float = 0.65  # of the embeddings; locked, as those below
    hidden_dropout: float = 0.2  # between layers
    output_dropout: float = 0.4
    weight_drop: float = 0.5  # share of the recurrent weights that are dropped for a step
    bptt: int | None = None  # steps that gradients go back in a text; None: through all of it
    backward: bool = False  # reads texts from their ends
    initializer_range: float = 0.1  # of token vectors


def build(config: LSTMConfig) -> Recurrent:
    """The whole wiring."""
    top = config.embedding_size if config.tie_word_embeddings else config.hidden_size
    widths = [config.embedding_size, *[config.hidden_size] * (config.num_hidden_layers - 1), top]
    dropouts = [config.hidden_dropout] * (config.num_hidden_layers - 1) + [config.output_dropout]
    head: Callable[[], nn.Module] = partial(OwnVocabularyHead, config.vocab_size, top, bias=True)
    if config.tie_word_embeddings:
        head = partial(VocabularyHead, config.vocab_size)
    backbone = Recurrent(
        Embeddings(config.vocab_size, config.embedding_size, word_dropout=config.word_dropout),
        [
            RecurrentLayer(Recurrence(inputs, width, config.cell, drop=config.weight_drop), dropout)
            for (inputs, width), dropout in zip(pairwise(widths), dropouts, strict=True)
        ],
        dropout=config.input_dropout,
        window=config.bptt,
        vocabulary_head=head,
        backward=config.backward,
    )
    return initialize_evenly(backbone, config.initializer_range)


LSTM = Family(
    name="lstm",
    config=LSTMConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False, document=("A", "end")),
    table=Table(
        ("embed.tokens", "backbone.embed.tokens"),
        ("layers.{i}.{p}", "backbone.layers.{i}.cells.{p}"),
        ("lm.bias", "heads.lm.bias"),
        ("lm.{p}", "heads.lm.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "Recurrent"},
    poolings={"": "last"},
    elsewhere=False,
)
