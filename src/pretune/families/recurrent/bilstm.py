"""A BiLSTM over token embeddings, as a small student for distillation (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize_uniform
from pretune.nn.output_heads import UntiedVocabularyHead
from pretune.nn.recurrent import CellKind, RecurrentCells, RecurrentLayer
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class BiLSTMConfig:
    """The configuration of a BiLSTM: one field per key of config.json."""

    vocab_size: int = 30522
    embedding_size: int = 300
    hidden_size: int = 300  # of each direction
    num_hidden_layers: int = 1  # of each direction
    cell: CellKind = "lstm"
    dropout: float = 0.0  # variational dropout of embeddings and layer outputs
    initializer_range: float = 0.1  # of the token embedding


def build(config: BiLSTMConfig) -> BidirectionalBackbone:
    """Build the BiLSTM backbone from its configuration."""
    embed = Embeddings(config.vocab_size, config.embedding_size)
    widths = [config.embedding_size] + [config.hidden_size] * (config.num_hidden_layers - 1)
    ahead, back = (
        initialize_uniform(
            RecurrentBackbone(
                embed,
                [RecurrentLayer(RecurrentCells(w, config.hidden_size, config.cell), config.dropout) for w in widths],
                dropout=config.dropout,
                vocabulary_head=partial(UntiedVocabularyHead, config.vocab_size, config.hidden_size, bias=True),
            ),
            config.initializer_range,
        )
        for _ in range(2)
    )
    return BidirectionalBackbone(ahead, back)


BILSTM = Family(
    name="bilstm",
    config=BiLSTMConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False),
    table=NameTable(
        ("embed.tokens", "backbone.embed.tokens"),
        *((f"{way}.layers.{{i}}.{{p}}", f"backbone.{way}.layers.{{i}}.cells.{{p}}") for way in ("ahead", "back")),
        ("bilm.{p}", "heads.bilm.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "BiLSTM"},
    poolings={"": "max"},
    in_transformers=False,
)
