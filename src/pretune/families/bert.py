"""BERT (Devlin et al., 2019, arXiv:1810.04805).

Departures: attention dropout is off unless asked for (the fast attention paths have none).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.encoder import Encoder
from pretune.families.family import Family, Table
from pretune.nn.attention import Attention
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.embeddings import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.heads import Transform, VocabularyHead
from pretune.nn.initialize import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.positions import Learned
from pretune.text.sequences import Template


@dataclass(frozen=True)
class BertConfig:
    """Keys of config.json."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02


def build(config: BertConfig) -> Encoder:
    """The whole wiring."""
    width, dropout = config.hidden_size, config.hidden_dropout_prob
    activation = ACTIVATIONS[config.hidden_act]
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def layer() -> Layer:
        attention = Attention(width, config.num_attention_heads, dropout=config.attention_probs_dropout_prob)
        feed_forward = FeedForward(width, config.intermediate_size, activation)
        return Layer(
            attention=PostNorm(attention, norm(), dropout), feed_forward=PostNorm(feed_forward, norm(), dropout)
        )

    encoder = Encoder(
        embed=Embeddings(
            config.vocab_size,
            width,
            positions=Learned(config.max_position_embeddings, width),
            segments=config.type_vocab_size,
            norm=norm(),
            dropout=dropout,
        ),
        layers=[layer() for _ in range(config.num_hidden_layers)],
        vocabulary_head=lambda: initialize(
            VocabularyHead(config.vocab_size, Transform(width, activation, norm())), config.initializer_range
        ),
        pooler=lambda: initialize(Transform(width, ACTIVATIONS["tanh"]), config.initializer_range),
    )
    return initialize(encoder, config.initializer_range)


_LAYER = "bert.encoder.layer.{i}"
_OURS = "backbone.layers.{i}"

BERT = Family(
    name="bert",
    config=BertConfig,
    build=build,
    template=Template(single=("start", "A", "separator"), pair=("B", "separator")),
    table=Table(
        ("bert.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
        ("bert.embeddings.position_embeddings.weight", "backbone.embed.positions.weight"),
        ("bert.embeddings.token_type_embeddings.weight", "backbone.embed.segments"),
        ("bert.embeddings.LayerNorm.{p}", "backbone.embed.norm.{p}"),
        (
            [f"{_LAYER}.attention.self.{part}.{{p}}" for part in ("query", "key", "value")],
            f"{_OURS}.attention.part.qkv.{{p}}",
        ),
        (f"{_LAYER}.attention.output.dense.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
        (f"{_LAYER}.attention.output.LayerNorm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_LAYER}.intermediate.dense.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_LAYER}.output.dense.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        (f"{_LAYER}.output.LayerNorm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        ("cls.predictions.transform.dense.{p}", "heads.mlm.transform.dense.{p}"),
        ("cls.predictions.transform.LayerNorm.{p}", "heads.mlm.transform.norm.{p}"),
        ("cls.predictions.bias", "heads.mlm.bias"),
        ("bert.pooler.dense.{p}", "heads.nsp.pooler.dense.{p}"),
        ("bert.pooler.dense.{p}", "heads.classify.pooler.dense.{p}"),
        ("cls.seq_relationship.{p}", "heads.nsp.output.{p}"),
        ("classifier.{p}", "heads.classify.output.{p}"),
        prefix="bert.",
        ignored=("bert.embeddings.position_ids", "cls.predictions.decoder.{p}"),
        renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    ),
    classes={
        frozenset(): "BertModel",
        frozenset({"mlm"}): "BertForMaskedLM",
        frozenset({"nsp"}): "BertForNextSentencePrediction",
        frozenset({"mlm", "nsp"}): "BertForPreTraining",
        frozenset({"classify"}): "BertForSequenceClassification",
    },
)
