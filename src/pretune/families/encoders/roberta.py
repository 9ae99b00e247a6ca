"""RoBERTa (Liu et al., 2019, arXiv:1907.11692) and models with its architecture and layout.

These are XLM-RoBERTa (Conneau et al., 2020, arXiv:1911.02116) and CamemBERT (Martin et al., 2020, arXiv:1911.03894).
Differences from the original: attention dropout is off by default; classifiers have no dropout before their first
linear layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders.bert import SUPPORTED, BertConfig, embeddings_of, encoder_of, encoder_rows, unused
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, Row, output_rows
from pretune.nn.blocks import TransformerLayer
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The configuration of RoBERTa: BERT's keys and the id of the padding token."""

    vocab_size: int = 50265
    pad_token_id: int = 1  # positions start at the next index


def build(config: RobertaConfig, layers: Iterable[TransformerLayer] | None = None) -> TransformerStack:
    """Build the RoBERTa backbone from its configuration, optionally with other layers than BERT's (Longformer)."""
    embed = embeddings_of(config, config.hidden_size, first=config.pad_token_id + 1)
    return encoder_of(config, embed=embed, layers=layers, head_activation="gelu")


TEMPLATE = Template(
    single=("start", "A", "separator"), pair=("separator", "B", "separator"), segments=False
)  # <s> A </s></s> B </s>


def table(name: str, *rows: Row, encoder: Iterable[Row] | None = None) -> NameTable:
    """Return the table of published and pretune parameter names of RoBERTa or a model like it.

    Published names begin with `name`; `rows` are further pairs of names, and `encoder`, if given, replaces the pairs of
    BERT's embeddings and layers.
    """
    return NameTable(
        *(encoder_rows(name) if encoder is None else encoder),
        *rows,
        ("lm_head.dense.{p}", "heads.mlm.transform.dense.{p}"),
        ("lm_head.layer_norm.{p}", "heads.mlm.transform.norm.{p}"),
        *output_rows("mlm", "lm_head.decoder.weight", "lm_head.bias", "lm_head.decoder.bias"),
        ("classifier.dense.{p}", "heads.classify.pooler.dense.{p}"),
        ("classifier.out_proj.{p}", "heads.classify.output.{p}"),
        (f"{name}.pooler.dense.{{p}}", "heads.choose.pooler.dense.{p}"),
        ("classifier.{p}", "heads.choose.output.{p}"),
        *TOKEN_HEADS,
        prefix=f"{name}.",
        embedding=(f"{name}.embeddings.word_embeddings.weight",),
        output="lm_head.decoder.weight",
        copied={"lm_head.bias": "lm_head.decoder.bias"},
        unused=unused(name),
    )


def family(name: str, prefix: str) -> Family:
    """Return a model family with RoBERTa's architecture; `prefix` begins the names of its `transformers` classes."""
    return Family(
        name=name,
        config=RobertaConfig,
        build=build,
        template=TEMPLATE,
        table=table("roberta"),
        classes=encoder_classes(prefix),
        # A decoder in `transformers`, read as an encoder here.
        other_classes={f"{prefix}ForCausalLM": frozenset({"mlm"})},
        supported=SUPPORTED,
    )


ROBERTA = family("roberta", "Roberta")
XLM_ROBERTA = family("xlm-roberta", "XLMRoberta")
CAMEMBERT = family("camembert", "Camembert")
