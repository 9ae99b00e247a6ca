"""ELECTRA (Clark et al., 2020, arXiv:2003.10555), discriminators and generators, with factorized embeddings.

Differences from the original: attention dropout is off by default; classifiers have no dropout before their first
linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES, summary_values
from pretune.families.encoders.bert import BERT, BertConfig, embeddings_of, encoder_of, encoder_rows, unused
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, output_rows
from pretune.nn.linear import Linear


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """The configuration of ELECTRA: BERT's keys and the embedding size."""

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024


def build(config: ElectraConfig) -> TransformerStack:
    """Build the ELECTRA backbone from its configuration."""
    width, vectors = config.hidden_size, config.embedding_size
    embed = embeddings_of(config, vectors, Linear(vectors, width) if vectors != width else None)
    # All heads have GELU, whatever the activation of the layers.
    return encoder_of(config, embed=embed, head_activation="gelu", pooler_activation="gelu")


ELECTRA = Family(
    name="electra",
    config=ElectraConfig,
    build=build,
    template=BERT.template,
    table=NameTable(
        *encoder_rows("electra"),
        ("electra.embeddings_project.{p}", "backbone.embed.project.{p}"),
        ("generator_predictions.dense.{p}", "heads.mlm.transform.dense.{p}"),
        ("generator_predictions.LayerNorm.{p}", "heads.mlm.transform.norm.{p}"),
        *output_rows("mlm", "generator_lm_head.weight", "generator_lm_head.bias"),
        ("discriminator_predictions.dense.{p}", "heads.rtd.dense.{p}"),
        ("discriminator_predictions.dense_prediction.{p}", "heads.rtd.output.{p}"),
        ("classifier.dense.{p}", "heads.classify.pooler.dense.{p}"),
        ("classifier.out_proj.{p}", "heads.classify.output.{p}"),
        ("sequence_summary.summary.{p}", "heads.choose.pooler.dense.{p}"),
        ("classifier.{p}", "heads.choose.output.{p}"),
        *TOKEN_HEADS,
        prefix="electra.",
        embedding=("electra.embeddings.word_embeddings.weight",),
        output="generator_lm_head.weight",
        unused=unused("electra"),
    ),
    classes={**encoder_classes("Electra"), frozenset({"rtd"}): "ElectraForPreTraining"},
    other_classes={"ElectraForCausalLM": frozenset({"mlm"})},  # a decoder in `transformers`, read as an encoder here
    supported={
        **ENCODER_VALUES,
        "position_embedding_type": ("absolute",),
        # The only supported input of the head for multiple choice.
        **summary_values("first", activation="gelu", to_labels=False),
    },
    companions=("generator",),
)
