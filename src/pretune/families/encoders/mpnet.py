"""MPNet (Song et al., 2020, arXiv:2004.09297): BERT with T5's relative position bias, shared by all layers.

The bias is added to learned positions, which start at index 2 and skip tokens with the id 1: `transformers` treats
these as padding whatever `pad_token_id` says.

Differences from the original: attention dropout is off by default; classifiers have no dropout before their first
linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.encoders import roberta
from pretune.families.encoders.bert import BertConfig, embeddings_of, encoder_of, layer_of
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import Row
from pretune.nn.attention.multi_head import RelativeAttention
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.blocks import TransformerLayer

# Constants that config.json does not have.
PADDING = 1
MAX_DISTANCE = 128


@dataclass(frozen=True)
class MPNetConfig(BertConfig):
    """The configuration of MPNet: BERT's keys and the number of relative position buckets."""

    vocab_size: int = 30527
    type_vocab_size: int = 0
    relative_attention_num_buckets: int = 32


def build(config: MPNetConfig) -> TransformerStack:
    """Build the MPNet backbone from its configuration."""
    width, heads = config.hidden_size, config.num_attention_heads

    def layer() -> TransformerLayer:
        # More pipeline stages do not fit into the shared memory of an H200.
        attention = RelativeAttention(width, heads, dropout=config.attention_probs_dropout_prob, stages=1)
        return layer_of(config, attention)

    return encoder_of(
        config,
        # There are no segment embeddings, whatever a file says.
        embed=embeddings_of(replace(config, type_vocab_size=0), width, first=PADDING + 1, padding=PADDING),
        score=T5RelativeBias(heads, config.relative_attention_num_buckets, MAX_DISTANCE),
        layers=[layer() for _ in range(config.num_hidden_layers)],
        head_activation="gelu",
    )


_LAYER, _OURS = "mpnet.encoder.layer.{i}", "backbone.layers.{i}"
_ATTENTION = f"{_LAYER}.attention.attn"
ENCODER_ROWS: list[Row] = [
    ("mpnet.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
    ("mpnet.embeddings.position_embeddings.weight", "backbone.embed.positions.weight"),
    ("mpnet.embeddings.LayerNorm.{p}", "backbone.embed.norm.{p}"),
    ("mpnet.encoder.relative_attention_bias.weight", "backbone.score.weight"),
    (f"{_ATTENTION}.q.{{p}}", f"{_OURS}.attention.part.query.{{p}}"),
    ([f"{_ATTENTION}.k.{{p}}", f"{_ATTENTION}.v.{{p}}"], f"{_OURS}.attention.part.key_value.{{p}}"),
    (f"{_ATTENTION}.o.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
    (f"{_LAYER}.attention.LayerNorm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
    (f"{_LAYER}.intermediate.dense.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
    (f"{_LAYER}.output.dense.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
    (f"{_LAYER}.output.LayerNorm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
]

MPNET = Family(
    name="mpnet",
    config=MPNetConfig,
    build=build,
    template=roberta.TEMPLATE,
    table=roberta.table("mpnet", encoder=ENCODER_ROWS),
    classes=encoder_classes("MPNet"),
    supported={
        **ENCODER_VALUES,
        "position_embedding_type": ("absolute",),
        "relative_attention_num_buckets": (32,),  # hard-coded in `transformers`
    },
    harmless={"embedding_size": "used only by a size check"},
)
