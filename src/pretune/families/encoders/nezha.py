"""NEZHA (Wei et al., 2019, arXiv:1909.00204): BERT with functional relative positions instead of absolute ones.

The positions are added to the keys and the values of attention (see `nn.attention.functional_positions`). Two prefixes
of parameter names are read: `nezha.`, that of `transformers` up to version 4, and `bert.`, that of the released code;
the first is written.

Differences from the original: attention dropout is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.nn.attention.functional_positions import FunctionalKeys, FunctionalValues
from pretune.nn.attention.multi_head import RelativeAttention, head_width_of
from pretune.nn.blocks import TransformerLayer


@dataclass(frozen=True)
class NezhaConfig(bert.BertConfig):
    """The configuration of NEZHA: BERT's keys and the distance beyond which positions are clipped."""

    vocab_size: int = 21128
    max_relative_position: int = 64


def build(config: NezhaConfig) -> TransformerStack:
    """Build the NEZHA backbone from its configuration."""
    width, heads = config.hidden_size, config.num_attention_heads
    sizes = heads, head_width_of(width, heads), config.max_relative_position

    def layer() -> TransformerLayer:
        attention = RelativeAttention(
            width,
            heads,
            FunctionalKeys(*sizes),
            values=FunctionalValues(*sizes),
            dropout=config.attention_probs_dropout_prob,
        )
        return bert.layer_of(config, attention)

    return bert.encoder_of(
        config,
        embed=bert.embeddings_of(config, width, first=None),
        layers=[layer() for _ in range(config.num_hidden_layers)],
    )


_SELF, _OURS = "nezha.encoder.layer.{i}.attention.self", "backbone.layers.{i}.attention.part"

NEZHA = Family(
    name="nezha",
    config=NezhaConfig,
    build=build,
    template=bert.BERT.template,
    table=bert.table(
        "nezha",
        (f"{_SELF}.query.{{p}}", f"{_OURS}.query.{{p}}"),
        ([f"{_SELF}.key.{{p}}", f"{_SELF}.value.{{p}}"], f"{_OURS}.key_value.{{p}}"),
        positions=False,
        more_unused={
            f"{_SELF}.relative_positions_encoding.positions_encoding": "computed from the distances, not learned"
        },
        renamed={"bert.": "nezha."},
    ),
    classes=bert.classes("Nezha"),
    supported={**bert.SUPPORTED, "use_relative_position": (True,)},
)
