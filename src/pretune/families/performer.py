"""Performer (Choromanski et al., 2020, arXiv:2009.14794): BERT's wiring, attention by random features in place of softmax.

No layout of it is published that others read: names are BERT's, and one more. Departures: the paper's networks are Transformers
with norms before their parts and without segments; random features are drawn once, not anew every so often; attention has no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.encoder import Encoder
from pretune.families import bert
from pretune.families.family import Family
from pretune.nn.attention import Attention
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.favor import Favor
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.heads import Transform
from pretune.nn.initialize import initialize
from pretune.nn.linear import LayerNorm


@dataclass(frozen=True)
class PerformerConfig(bert.BertConfig):
    """Keys of config.json: BERT's and one more."""

    num_random_features: int = 256


def build(config: PerformerConfig) -> Encoder:
    """The whole wiring."""
    width, activation = config.hidden_size, ACTIVATIONS[config.hidden_act]
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def layer() -> Layer:
        heads = config.num_attention_heads
        attention = Attention(width, heads, attend=Favor(width // heads, config.num_random_features))
        feed_forward = FeedForward(width, config.intermediate_size, activation)
        return Layer(
            attention=PostNorm(attention, norm(), config.hidden_dropout_prob),
            feed_forward=PostNorm(feed_forward, norm(), config.hidden_dropout_prob),
        )

    encoder = Encoder(
        embed=bert.embeddings_of(config, width),
        layers=[layer() for _ in range(config.num_hidden_layers)],
        vocabulary_head=lambda: bert.vocabulary_head_of(config, activation, width),
        pooler=lambda: initialize(Transform(width, ACTIVATIONS["tanh"]), config.initializer_range),
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
    elsewhere=False,
)
