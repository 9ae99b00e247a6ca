"""Performer (Choromanski et al., 2020, arXiv:2009.14794): BERT with random-feature attention in place of softmax.

There is no published checkpoint layout; parameter names are BERT's and one more. Departures: the paper's networks are
pre-norm and have no segment embeddings; random features are drawn once instead of periodically; attention has no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.nn.attention.multi_head import SelfAttention, head_width_of
from pretune.nn.attention.performer import RandomFeatureAttention
from pretune.nn.blocks import TransformerLayer
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.initialization import initialize
from pretune.nn.output_heads import DenseTransform


@dataclass(frozen=True)
class PerformerConfig(bert.BertConfig):
    """The configuration: BERT's keys and one more."""

    num_random_features: int = 256


def build(config: PerformerConfig) -> TransformerStack:
    """Build the backbone from its configuration."""
    width, activation = config.hidden_size, ACTIVATIONS[config.hidden_act]

    def layer() -> TransformerLayer:
        heads = config.num_attention_heads
        return bert.layer_of(
            config,
            SelfAttention(
                width, heads, attend=RandomFeatureAttention(head_width_of(width, heads), config.num_random_features)
            ),
        )

    encoder = TransformerStack(
        embed=bert.embeddings_of(config, width),
        layers=[layer() for _ in range(config.num_hidden_layers)],
        vocabulary_head=lambda: bert.vocabulary_head_of(config, activation, width),
        pooler=lambda: initialize(DenseTransform(width, ACTIVATIONS["tanh"]), config.initializer_range),
    )
    return initialize(encoder, config.initializer_range)


PERFORMER = Family(
    name="performer",
    config=PerformerConfig,
    build=build,
    template=bert.BERT.template,
    table=bert.table(
        "performer",
        (
            "performer.encoder.layer.{i}.attention.self.random_features",
            "backbone.layers.{i}.attention.part.attend.features",
        ),
    ),
    classes={frozenset(): "Encoder"},
    supported=bert.SUPPORTED,
    elsewhere=False,
)
