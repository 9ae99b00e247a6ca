"""DeBERTa and DeBERTa-v2 (He et al., 2021, arXiv:2006.03654), and v3 (arXiv:2111.09543), with the same layout.

Attention is disentangled: by content, and by relative positions, which have their own embeddings. The masked-LM head
has two names: `cls.predictions` and, in the released checkpoints, `lm_predictions`. Both are read; the first, the
default of `transformers` (`legacy`), is written.

Differences from the original: attention dropout is off by default; absolute positions are not added before the output
layer (the enhanced mask decoder of the paper), as in `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.encoders import bert
from pretune.families.family import Family, SupportedValues, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, Row, pooled_heads
from pretune.nn.attention.disentangled import (
    DisentangledAttention,
    RelativeEmbeddings,
    SeparateProjections,
    SharedProjections,
)
from pretune.nn.attention.score_mods import DisentangledScore
from pretune.nn.blocks import TransformerLayer
from pretune.nn.convolution import Convolution, WithConvolution
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.linear import LayerNorm
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class DebertaConfig(bert.BertConfig):
    """The configuration of DeBERTa: BERT's keys and those of relative positions."""

    vocab_size: int = 50265
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    max_relative_positions: int = -1  # larger distances are clipped; -1: max_position_embeddings
    position_biased_input: bool = True  # add absolute position embeddings to the token embeddings
    pos_att_type: str | Sequence[str] | None = None  # "c2p|p2c", or a list of both
    pooler_hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        if self.max_relative_positions < 1:  # made explicit, so that it stays if positions are added
            object.__setattr__(self, "max_relative_positions", self.max_position_embeddings)

    @property
    def terms(self) -> set[str]:
        """Return the position terms of disentangled attention: c2p (content to position), p2c, or both."""
        terms = self.pos_att_type or ()
        return {term.strip().lower() for term in (terms.split("|") if isinstance(terms, str) else terms)}


@dataclass(frozen=True)
class DebertaV2Config(DebertaConfig):
    """The configuration of DeBERTa-v2 and v3: DeBERTa's keys with other defaults, and further keys."""

    vocab_size: int = 128100
    hidden_size: int = 1536
    num_hidden_layers: int = 24
    num_attention_heads: int = 24
    intermediate_size: int = 6144
    position_buckets: int = -1  # relative position embeddings per direction; -1: one for each distance
    norm_rel_ebd: str = "none"  # "layer_norm": normalize the relative position embeddings
    share_att_key: bool = False
    conv_kernel_size: int = 0  # convolution parallel to the first layer; 0: none
    conv_act: str = "tanh"


def build(config: DebertaConfig) -> TransformerStack:
    """Build the DeBERTa backbone from its configuration."""
    check("deberta", config)
    score = DisentangledScore(config.max_relative_positions)
    return _encoder(config, score, _layers(config, score, SeparateProjections))


def build_v2(config: DebertaV2Config) -> TransformerStack:
    """Build the DeBERTa backbone of version 2 or 3 from its configuration."""
    check("deberta-v2", config)
    score = DisentangledScore(config.max_relative_positions, max(config.position_buckets, 0))
    layers, norm = (
        _layers(config, score, SharedProjections),
        partial(LayerNorm, config.hidden_size, config.layer_norm_eps),
    )
    if config.conv_kernel_size > 0:
        convolution = Convolution(config.hidden_size, config.conv_kernel_size)
        activation, dropout = ACTIVATIONS[config.conv_act], config.hidden_dropout_prob
        layers[0] = WithConvolution(layers[0], convolution, activation, norm(), dropout)
    return _encoder(config, score, layers, norm() if config.norm_rel_ebd == "layer_norm" else None)


def _encoder(
    config: DebertaConfig, score: DisentangledScore, layers: list[nn.Module], norm: LayerNorm | None = None
) -> TransformerStack:
    """Build and initialize a DeBERTa encoder from its layers.

    `score` computes the relative position terms of attention; `norm` is applied to the relative position embeddings.
    """
    return bert.encoder_of(
        config,
        embed=bert.embeddings_of(config, config.hidden_size, first=0 if config.position_biased_input else None),
        layers=layers,
        distances=RelativeEmbeddings(2 * score.per_direction, config.hidden_size, norm),
        pooler_activation=config.pooler_hidden_act,
    )


def _layers(
    config: DebertaConfig, score: DisentangledScore, project: type[SeparateProjections | SharedProjections]
) -> list[nn.Module]:
    """Build the DeBERTa layers from a configuration.

    `score` computes the relative position terms of attention; `project` is the class of the query, key and value
    projections.
    """
    width, heads, dropout = config.hidden_size, config.num_attention_heads, config.hidden_dropout_prob

    def layer() -> TransformerLayer:
        attention = DisentangledAttention(
            width,
            heads,
            project(width, heads),
            score,
            distance_dropout=dropout,
            dropout=config.attention_probs_dropout_prob,
        )
        return bert.layer_of(config, attention)

    return [layer() for _ in range(config.num_hidden_layers)]


def check(family: str, config: DebertaConfig) -> None:
    """Raise an error for relative-position settings that no released DeBERTa checkpoint has."""
    buckets = config.position_buckets if isinstance(config, DebertaV2Config) else 0
    if buckets > 0 and config.max_relative_positions <= buckets // 2 + 1:
        raise PretuneError(
            f"{family}: max_relative_positions {config.max_relative_positions} with position_buckets {buckets} is not "
            f"supported; in config.json, set max_relative_positions to more than {buckets // 2 + 1}"
        )
    if config.terms != {"c2p", "p2c"}:
        raise PretuneError(
            f"{family}: pos_att_type {config.pos_att_type!r} is not supported; use a model with pos_att_type 'c2p|p2c'"
        )


_SELF, _PROJECT = "deberta.encoder.layer.{i}.attention.self", "backbone.layers.{i}.attention.part.project"


def _table(*own: Row) -> NameTable:
    """Return the table of published and pretune parameter names of DeBERTa (v1 or v2).

    `own` has the pairs of names for the attention of that version.
    """
    rows = [*own, *bert.encoder_rows("deberta")]
    return NameTable(
        *rows,
        *(
            (published, ours.replace("layers.{i}.", "layers.{i}.layer.")) for published, ours in rows
        ),  # parallel to a convolution
        ("deberta.encoder.rel_embeddings.weight", "backbone.distances.weight"),
        *bert.MLM_ROWS,
        *pooled_heads("pooler.dense.{p}", "classifier.{p}"),
        *TOKEN_HEADS,
        prefix="deberta.",
        embedding=("deberta.embeddings.word_embeddings.weight",),
        output=bert.MLM_OUTPUT,
        copied=bert.MLM_COPIED,
        unused={
            **bert.unused("deberta"),
            "deberta.embeddings.position_embeddings.weight": "used only by the enhanced mask decoder",
        },
        unsupported=dict.fromkeys(
            ("mask_predictions.dense.{p}", "mask_predictions.LayerNorm.{p}", "mask_predictions.classifier.{p}"),
            "the replaced-token-detection head of version 3",
        ),
        renamed={
            "lm_predictions.lm_head.bias": "cls.predictions.bias",
            "lm_predictions.lm_head.": "cls.predictions.transform.",
        },
    )


_SUPPORTED: Mapping[str, SupportedValues] = {
    **ENCODER_VALUES,
    "relative_attention": (True,),
    "attention_head_size": lambda config: (config.hidden_size // config.num_attention_heads,),
    "embedding_size": lambda config: (config.hidden_size,),
    "pooler_hidden_size": lambda config: (config.hidden_size,),
}
_HARMLESS = {
    "legacy": "selects one of two names of the masked-LM head; both are read",
    "padding_idx": "also in the tokenizer's files",
    "pooler_dropout": "dropout of a head",
}

DEBERTA = Family(
    name="deberta",
    config=DebertaConfig,
    build=build,
    template=bert.BERT.template,
    table=_table(
        (f"{_SELF}.in_proj.weight", f"{_PROJECT}.content.weight"),
        (f"{_SELF}.q_bias", f"{_PROJECT}.query_bias"),
        (f"{_SELF}.v_bias", f"{_PROJECT}.value_bias"),
        (f"{_SELF}.pos_proj.weight", f"{_PROJECT}.position_key"),
        (f"{_SELF}.pos_q_proj.weight", f"{_PROJECT}.position_query"),
        (f"{_SELF}.pos_q_proj.bias", f"{_PROJECT}.position_query_bias"),
    ),
    # `transformers` has no class for multiple choice.
    classes={heads: name for heads, name in encoder_classes("Deberta").items() if "choose" not in heads},
    supported={**_SUPPORTED, "talking_head": (False,)},
    harmless=_HARMLESS,
)
DEBERTA_V2 = Family(
    name="deberta-v2",
    config=DebertaV2Config,
    build=build_v2,
    template=bert.BERT.template,
    table=_table(
        ([f"{_SELF}.{part}_proj.{{p}}" for part in ("query", "key", "value")], f"{_PROJECT}.qkv.{{p}}"),
        ("deberta.encoder.LayerNorm.{p}", "backbone.distances.norm.{p}"),
        ("deberta.encoder.conv.conv.{p}", "backbone.layers.0.convolution.{p}"),
        ("deberta.encoder.conv.LayerNorm.{p}", "backbone.layers.0.norm.{p}"),
    ),
    classes=encoder_classes("DebertaV2"),
    supported={**_SUPPORTED, "share_att_key": (True,), "norm_rel_ebd": ("none", "layer_norm"), "conv_groups": (1,)},
    harmless=_HARMLESS,
)
