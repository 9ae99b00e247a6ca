"""ALBERT (Lan et al., 2020, arXiv:1909.11942): BERT with shared layers.

Differences from the original: attention dropout is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.encoders.bert import BERT, BertConfig, embeddings_of, encoder_of, layer_of, unused
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, output_rows, pooled_heads
from pretune.nn.blocks import LayerSequence
from pretune.nn.linear import Linear
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """The configuration of ALBERT: BERT's keys, the embedding size, and the grouping of shared layers."""

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_groups: int = 1  # layers of one group share their parameters
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1  # layers per repetition of a group
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0

    def order(self) -> list[int]:
        """Return, for each layer of ALBERT, the index of the group of shared parameters that it uses."""
        depths, groups = self.num_hidden_layers, self.num_hidden_groups
        if not 1 <= groups <= depths:
            raise PretuneError(
                f"albert: num_hidden_groups ({groups}) must not exceed num_hidden_layers ({depths}); correct one of the two keys in config.json"
            )
        return [int(depth / (depths / groups)) for depth in range(depths)]


def build(config: AlbertConfig) -> TransformerStack:
    """Build the ALBERT backbone from its configuration."""
    vectors = config.embedding_size
    return encoder_of(
        config,
        embed=embeddings_of(config, vectors, Linear(vectors, config.hidden_size)),
        layers=[
            LayerSequence(*(layer_of(config) for _ in range(config.inner_group_num)))
            for _ in range(config.num_hidden_groups)
        ],
        order=config.order(),
    )


_LAYER = "albert.encoder.albert_layer_groups.{i}.albert_layers.{j}"
_OURS = "backbone.layers.{i}.{j}"

ALBERT = Family(
    name="albert",
    config=AlbertConfig,
    build=build,
    template=BERT.template,
    table=NameTable(
        ("albert.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
        ("albert.embeddings.position_embeddings.weight", "backbone.embed.positions.weight"),
        ("albert.embeddings.token_type_embeddings.weight", "backbone.embed.segments"),
        ("albert.embeddings.LayerNorm.{p}", "backbone.embed.norm.{p}"),
        ("albert.encoder.embedding_hidden_mapping_in.{p}", "backbone.embed.project.{p}"),
        (
            [f"{_LAYER}.attention.{part}.{{p}}" for part in ("query", "key", "value")],
            f"{_OURS}.attention.part.qkv.{{p}}",
        ),
        (f"{_LAYER}.attention.dense.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
        (f"{_LAYER}.attention.LayerNorm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_LAYER}.ffn.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_LAYER}.ffn_output.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        (f"{_LAYER}.full_layer_layer_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        ("predictions.dense.{p}", "heads.mlm.transform.dense.{p}"),
        ("predictions.LayerNorm.{p}", "heads.mlm.transform.norm.{p}"),
        *output_rows("mlm", "predictions.decoder.weight", "predictions.bias", "predictions.decoder.bias"),
        ("albert.pooler.{p}", "heads.sop.pooler.dense.{p}"),
        ("sop_classifier.classifier.{p}", "heads.sop.output.{p}"),
        *pooled_heads("albert.pooler.{p}", "classifier.{p}"),
        *TOKEN_HEADS,
        prefix="albert.",
        embedding=("albert.embeddings.word_embeddings.weight",),
        output="predictions.decoder.weight",
        copied={"predictions.bias": "predictions.decoder.bias"},
        unused=unused("albert"),
    ),
    classes={**encoder_classes("Albert"), frozenset({"mlm", "sop"}): "AlbertForPreTraining"},
    supported={**ENCODER_VALUES, "position_embedding_type": ("absolute",)},
    harmless=dict.fromkeys(
        ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"),
        "a leftover of the published code; nothing reads it",
    ),
)
