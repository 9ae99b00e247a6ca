"""Performer (Choromanski et al., 2020, arXiv:2009.14794): BERT with random-feature attention in place of softmax.

There is no published checkpoint layout; parameter names are BERT's, and one for the random features. Differences from
the original: the paper's networks are pre-norm and have no segment embeddings; random features are drawn once, not
periodically; attention has no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.nn.attention.multi_head import SelfAttention, head_width_of
from pretune.nn.attention.performer import RandomFeatureAttention
from pretune.nn.blocks import TransformerLayer


@dataclass(frozen=True)
class PerformerConfig(bert.BertConfig):
    """The configuration of Performer: BERT's keys and the number of random features."""

    num_random_features: int = 256


def build(config: PerformerConfig) -> TransformerStack:
    """Build the Performer backbone from its configuration."""
    width, heads = config.hidden_size, config.num_attention_heads

    def layer() -> TransformerLayer:
        attend = RandomFeatureAttention(head_width_of(width, heads), config.num_random_features)
        return bert.layer_of(config, SelfAttention(width, heads, attend=attend))

    return bert.encoder_of(config, layers=[layer() for _ in range(config.num_hidden_layers)])


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
    in_transformers=False,
)
