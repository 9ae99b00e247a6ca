"""ELMo (Peters et al., 2018, arXiv:1802.05365): two stacks of projected LSTM layers over words spelled by a character CNN.

Departures: words outside the vocabulary are read as unknown ones while pretraining (afterward by their letters); the
softmax is whole (the paper draws 8192 negatives); neither cells nor projections are clipped, which no fast kernel does,
unless `cell_clip` and `proj_clip` say so, as for the published weights: these run step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.bidirectional import TwoWays
from pretune.backbones.recurrent import Recurrent
from pretune.families.family import Family, Row, Table
from pretune.nn.character_cnn import SpelledEmbeddings
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.output_heads import OwnVocabularyHead
from pretune.nn.recurrent import Recurrence, RecurrentLayer
from pretune.text.tokenizers.template import Template

Pairs = tuple[tuple[int, int], ...]
FILTERS: Pairs = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class ElmoConfig:
    """Keys of config.json."""

    vocab_size: int = 793471  # of the softmax
    hidden_size: int = 4096  # cells of a layer
    projection_size: int = 512  # of a stack; states are those of two
    num_hidden_layers: int = 2  # of each stack
    residual: bool = True  # from each layer but the first to the next
    character_size: int = 16
    max_characters: int = 50
    filters: Pairs = FILTERS  # letters that they see, and how many
    highways: int = 2
    activation: str = "relu"
    dropout: float = 0.1
    cell_clip: float | None = None
    proj_clip: float | None = None


def build(config: ElmoConfig) -> TwoWays:
    """The whole wiring."""
    width = config.projection_size
    clip = None if config.cell_clip is None else (config.cell_clip, config.proj_clip or float("inf"))
    embed = SpelledEmbeddings(
        config.vocab_size,
        width,
        [(seen, count) for seen, count in config.filters],
        vectors=config.character_size,
        letters=config.max_characters,
        highways=config.highways,
        activation=ACTIVATIONS[config.activation],
        dropout=config.dropout,
    )
    ahead, back = (
        Recurrent(
            embed,
            [
                RecurrentLayer(
                    Recurrence(width, config.hidden_size, projection=width, clip=clip),
                    config.dropout,
                    residual=config.residual and number > 0,
                )
                for number in range(config.num_hidden_layers)
            ],
            vocabulary_head=partial(OwnVocabularyHead, config.vocab_size, width, bias=True),
        )
        for _ in range(2)
    )
    return TwoWays(ahead, back)


def _rows() -> list[Row]:
    names = [
        *("embed.symbols", "embed.filters.{i}.{p}", "embed.project.{p}"),
        *(f"embed.highways.{{i}}.{part}.{{p}}" for part in ("transform", "gate")),
        *(f"{way}.layers.{{i}}.cells.{{p}}" for way in ("ahead", "back")),
    ]
    return [(name, f"backbone.{name}") for name in names]


ELMO = Family(
    name="elmo",
    config=ElmoConfig,
    build=build,
    template=Template(single=("start", "A", "end"), pair=("B", "end"), segments=False),
    table=Table(
        *_rows(),
        ("bilm.{p}", "heads.bilm.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "TwoWays"},
    elsewhere=False,
)
