"""DistilBERT (Sanh et al., 2019, arXiv:1910.01108): BERT with half of its layers, no segments and no pooler.

Differences from the original: attention dropout is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.encoders.bert import BertConfig, encoder_of, unused
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, output_rows, pooled_heads
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class DistilBertConfig:
    """The configuration of DistilBERT: one field per key of config.json."""

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    sinusoidal_pos_embds: bool = False
    n_layers: int = 6
    n_heads: int = 12
    dim: int = 768
    hidden_dim: int = 3072
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: str = "gelu"
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True


def build(config: DistilBertConfig) -> TransformerStack:
    """Build the DistilBERT backbone from its configuration."""
    same = BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.dim,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=config.hidden_dim,
        hidden_act=config.activation,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings,
        type_vocab_size=0,
        initializer_range=config.initializer_range,
        tie_word_embeddings=config.tie_word_embeddings,
    )
    encoder = encoder_of(same, pooler_activation="relu")
    if config.sinusoidal_pos_embds:
        assert isinstance(encoder.embed.positions, LearnedPositions)
        encoder.embed.positions.freeze_sinusoidal()
    return encoder


_LAYER = "distilbert.transformer.layer.{i}"
_OURS = "backbone.layers.{i}"

DISTILBERT = Family(
    name="distilbert",
    config=DistilBertConfig,
    build=build,
    template=Template(single=("start", "A", "separator"), pair=("B", "separator"), segments=False),
    table=NameTable(
        ("distilbert.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
        ("distilbert.embeddings.position_embeddings.weight", "backbone.embed.positions.weight"),
        ("distilbert.embeddings.LayerNorm.{p}", "backbone.embed.norm.{p}"),
        ([f"{_LAYER}.attention.{part}_lin.{{p}}" for part in ("q", "k", "v")], f"{_OURS}.attention.part.qkv.{{p}}"),
        (f"{_LAYER}.attention.out_lin.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
        (f"{_LAYER}.sa_layer_norm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_LAYER}.ffn.lin1.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_LAYER}.ffn.lin2.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        (f"{_LAYER}.output_layer_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        ("vocab_transform.{p}", "heads.mlm.transform.dense.{p}"),
        ("vocab_layer_norm.{p}", "heads.mlm.transform.norm.{p}"),
        *output_rows("mlm", "vocab_projector.weight", "vocab_projector.bias"),
        *pooled_heads("pre_classifier.{p}", "classifier.{p}"),
        *TOKEN_HEADS,
        prefix="distilbert.",
        embedding=("distilbert.embeddings.word_embeddings.weight",),
        output="vocab_projector.weight",
        unused=unused("distilbert"),
    ),
    classes=encoder_classes("DistilBert"),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    supported=ENCODER_VALUES,
    harmless={
        "qa_dropout": "dropout of a head",
        "seq_classif_dropout": "dropout of a head",
        "tie_weights_": "an older name of tie_word_embeddings",
    },
)
