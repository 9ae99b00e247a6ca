"""Funnel-Transformer (Dai et al., 2020, arXiv:2006.03236): an encoder that pools tokens between blocks of layers.

Each block reads half as many tokens as the one before. A decoder repeats the states of the last block for all tokens,
adds the states of the first block, and has a few more layers; the encoder alone (`FunnelBaseModel`) is for
classification.

`transformers` computes the same for each text alone. In its padded batches, the padding is pooled with the last tokens
of shorter texts; here it never is.

Differences from the original: attention dropout is off by default; position encodings have no dropout; weights are
initialized as BERT's; [CLS] has segment 0, not 2, which changes nothing with `separate_cls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from pretune.backbones.funnel import FunnelBlock, FunnelStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.encoders import bert
from pretune.families.family import Family, SupportedValues, token_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, Row, output_rows, pooled_heads
from pretune.nn.attention.multi_head import RelativeAttention
from pretune.nn.attention.pooled_layout import TokenPooling
from pretune.nn.attention.score_mods import FunnelScore
from pretune.nn.blocks import PostNorm, TransformerLayer
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, vocabulary_head
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class FunnelConfig:
    """The configuration of Funnel-Transformer: one field per key of config.json."""

    vocab_size: int = 30522
    block_sizes: tuple[int, ...] = (4, 4, 4)
    block_repeats: tuple[int, ...] = ()  # how many times the layers of each block run; (): once
    num_decoder_layers: int = 2
    d_model: int = 768
    n_head: int = 12
    d_head: int = 64
    d_inner: int = 3072
    hidden_act: str = "gelu_new"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    layer_norm_eps: float = 1e-9
    initializer_range: float = 0.1
    pooling_type: str = "mean"
    separate_cls: bool = True
    truncate_seq: bool = True
    pool_q_only: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if not self.block_repeats:
            object.__setattr__(self, "block_repeats", (1,) * len(self.block_sizes))
        if not self.block_sizes or len(self.block_repeats) != len(self.block_sizes):
            raise PretuneError(
                f"funnel: there are {len(self.block_sizes)} block_sizes and {len(self.block_repeats)} block_repeats; in "
                "config.json, give one of each per block"
            )


_DEVIATION = 0.02  # of initial weights; `initializer_range` is that of a uniform distribution


def build(config: FunnelConfig) -> FunnelStack:
    """Build the Funnel-Transformer backbone, with its decoder, from its configuration."""
    return _build(config, FunnelBlock(_layer(config) for _ in range(config.num_decoder_layers)))


def build_base(config: FunnelConfig) -> FunnelStack:
    """Build the encoder of Funnel-Transformer alone from its configuration."""
    return _build(config, None)


def _layer(config: FunnelConfig) -> TransformerLayer:
    """Build a layer of the encoder or the decoder."""
    width, heads, head_width = config.d_model, config.n_head, config.d_head
    attention = RelativeAttention(
        width,
        heads,
        FunnelScore(width, heads, head_width),
        head_width=head_width,
        content_bias=True,
        query_bias=False,
        dropout=config.attention_dropout,
    )
    feed_forward = FeedForward(width, config.d_inner, ACTIVATIONS[config.hidden_act], dropout=config.activation_dropout)
    norm = partial(LayerNorm, width, config.layer_norm_eps)
    return TransformerLayer.normalized(
        PostNorm, norm, config.hidden_dropout, attention=attention, feed_forward=feed_forward
    )


def _build(config: FunnelConfig, decoder: FunnelBlock | None) -> FunnelStack:
    """Assemble and initialize the backbone, with or without a decoder."""
    width = config.d_model
    sizes = zip(config.block_sizes, config.block_repeats, strict=True)
    backbone = FunnelStack(
        Embeddings(
            config.vocab_size, width, norm=LayerNorm(width, config.layer_norm_eps), dropout=config.hidden_dropout
        ),
        [FunnelBlock((_layer(config) for _ in range(size)), repeats) for size, repeats in sizes],
        decoder,
        pooling=TokenPooling(config.separate_cls, config.truncate_seq),
        pooling_type="max" if config.pooling_type == "max" else "mean",
        pool_q_only=config.pool_q_only,
        vocabulary_head=lambda: initialize(
            vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings), _DEVIATION
        ),
        pooler=lambda: initialize(DenseTransform(width, ACTIVATIONS["tanh"]), _DEVIATION),
        detection_activation=ACTIVATIONS[config.hidden_act],
    )
    return initialize(backbone, _DEVIATION)


def _layer_rows(published: str, ours: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for layers with these prefixes."""
    attention, part = f"{published}.attention", f"{ours}.attention.part"
    return [
        (f"{attention}.q_head.weight", f"{part}.query.weight"),
        ([f"{attention}.k_head.{{p}}", f"{attention}.v_head.{{p}}"], f"{part}.key_value.{{p}}"),
        (f"{attention}.post_proj.{{p}}", f"{part}.output.{{p}}"),
        (f"{attention}.r_kernel", f"{part}.score.position"),
        (f"{attention}.r_w_bias", f"{part}.content_bias"),
        (f"{attention}.r_r_bias", f"{part}.score.position_bias"),
        (f"{attention}.r_s_bias", f"{part}.score.segment_bias"),
        (f"{attention}.seg_embed", f"{part}.score.segment"),
        (f"{attention}.layer_norm.{{p}}", f"{ours}.attention.norm.{{p}}"),
        (f"{published}.ffn.linear_1.{{p}}", f"{ours}.feed_forward.part.inner.{{p}}"),
        (f"{published}.ffn.linear_2.{{p}}", f"{ours}.feed_forward.part.output.{{p}}"),
        (f"{published}.ffn.layer_norm.{{p}}", f"{ours}.feed_forward.norm.{{p}}"),
    ]


_ENCODER, _DECODER = "funnel.encoder.blocks.{i}.{j}", "funnel.decoder.layers.{i}"
_KERNELS = [f"{layer}.attention.r_kernel" for layer in (_ENCODER, _DECODER)]


def _table(*rows: Row) -> NameTable:
    """Return the table of published and pretune parameter names; `rows` are those of the decoder and the heads."""
    return NameTable(
        ("funnel.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
        ("funnel.embeddings.layer_norm.{p}", "backbone.embed.norm.{p}"),
        *_layer_rows(_ENCODER, "backbone.layers.{i}.layers.{j}"),
        *rows,
        prefix="funnel.",
        embedding=("funnel.embeddings.word_embeddings.weight",),
        output="lm_head.weight",
        transposed=_KERNELS,
        folded={name: name.replace("r_kernel", "r_w_bias") for name in _KERNELS},
    )


_SUPPORTED: Mapping[str, SupportedValues] = {
    **ENCODER_VALUES,
    "attention_type": ("relative_shift", "factorized"),  # two ways to compute the same
    "pooling_type": ("mean", "max"),
    "num_hidden_layers": lambda config: (sum(config.block_sizes),),
    "num_blocks": lambda config: (len(config.block_sizes),),
}

_FULL = Family(
    name="funnel",
    config=FunnelConfig,
    build=build,
    template=bert.BERT.template,
    table=_table(
        *_layer_rows(_DECODER, "backbone.decoder.layers.{i}"),
        *output_rows("mlm", "lm_head.weight", "lm_head.bias"),
        ("discriminator_predictions.dense.{p}", "heads.rtd.dense.{p}"),
        ("discriminator_predictions.dense_prediction.{p}", "heads.rtd.output.{p}"),
        *TOKEN_HEADS,
    ),
    classes={
        frozenset(): "FunnelModel",
        frozenset({"mlm"}): "FunnelForMaskedLM",
        frozenset({"rtd"}): "FunnelForPreTraining",
        **token_classes("Funnel"),
    },
    aliases={"hidden_size": "d_model", "num_attention_heads": "n_head"},
    supported=_SUPPORTED,
    harmless={
        "initializer_std": "initialization",
        **dict.fromkeys(("max_position_embeddings", "type_vocab_size"), "in older files; nothing reads it"),
    },
)
BASE = replace(
    _FULL,
    build=build_base,
    table=_table(*pooled_heads("classifier.linear_hidden.{p}", "classifier.linear_out.{p}")),
    classes={
        frozenset(): "FunnelBaseModel",
        frozenset({"classify"}): "FunnelForSequenceClassification",
        frozenset({"choose"}): "FunnelForMultipleChoice",
    },
)
FUNNEL = replace(_FULL, variants=(BASE,))
