"""ELMo (Peters et al., 2018, arXiv:1802.05365): forward and backward LSTMs with projections over a character CNN.

Differences from the original: in pretraining, words outside the vocabulary are unknown tokens (afterward they are read
by character); the softmax is full (the paper samples 8192 negatives); cells and projections are not clipped, since no
fast kernel supports clipping. The published weights set `cell_clip` and `proj_clip`, so they run with clipping, step by
step and more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable, own_rows
from pretune.nn.embedding.character_cnn import CharacterEmbeddings
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.output_heads import UntiedVocabularyHead
from pretune.nn.recurrent import RecurrentCells, RecurrentLayer
from pretune.text.tokenizers.template import Template

Pairs = tuple[tuple[int, int], ...]
FILTERS: Pairs = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class ElmoConfig:
    """The configuration of ELMo: one field per key of config.json."""

    vocab_size: int = 793471  # words of the softmax
    hidden_size: int = 4096  # LSTM cells per layer
    projection_size: int = 512  # of each direction; hidden states concatenate two
    num_hidden_layers: int = 2  # of each direction
    residual: bool = True  # residual connections from the second layer on
    character_size: int = 16
    max_characters: int = 50
    filters: Pairs = FILTERS  # pairs of filter width and number of filters
    highways: int = 2
    activation: str = "relu"
    dropout: float = 0.1
    cell_clip: float | None = None
    proj_clip: float | None = None


def build(config: ElmoConfig) -> BidirectionalBackbone:
    """Build the ELMo backbone from its configuration."""
    width = config.projection_size
    clip = None if config.cell_clip is None else (config.cell_clip, config.proj_clip or float("inf"))
    embed = CharacterEmbeddings(
        config.vocab_size,
        width,
        config.filters,
        vectors=config.character_size,
        letters=config.max_characters,
        highways=config.highways,
        activation=ACTIVATIONS[config.activation],
        dropout=config.dropout,
    )
    ahead, back = (
        RecurrentBackbone(
            embed,
            [
                RecurrentLayer(
                    RecurrentCells(width, config.hidden_size, projection=width, clip=clip),
                    config.dropout,
                    residual=config.residual and number > 0,
                )
                for number in range(config.num_hidden_layers)
            ],
            vocabulary_head=partial(UntiedVocabularyHead, config.vocab_size, width, bias=True),
        )
        for _ in range(2)
    )
    return BidirectionalBackbone(ahead, back)


ELMO = Family(
    name="elmo",
    config=ElmoConfig,
    build=build,
    template=Template(single=("start", "A", "end"), pair=("B", "end"), segments=False),
    table=NameTable(
        *own_rows("embed.symbols", "embed.filters.{i}.{p}", "embed.project.{p}"),
        *own_rows(*(f"embed.highways.{{i}}.{part}.{{p}}" for part in ("transform", "gate"))),
        *own_rows(*(f"{way}.layers.{{i}}.cells.{{p}}" for way in ("ahead", "back"))),
        ("bilm.{p}", "heads.bilm.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "TwoWays"},
    in_transformers=False,
)
