"""BART (Lewis et al., 2020, arXiv:1910.13461), and the layers and layout that mBART and Marian share with it.

Differences from the original: attention dropout is off by default (the fast attention kernels have none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_DECODER_VALUES
from pretune.families.family import Family, seq2seq_classes
from pretune.families.parameter_names import NameTable, Row
from pretune.nn.attention.multi_head import CrossAttention, SelfAttention
from pretune.nn.attention.patterns import causal, full
from pretune.nn.blocks import PostNorm, PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import LearnedPositions, SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, FixedBias, vocabulary_head
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class BartConfig:
    """The configuration of BART: one field per key of config.json."""

    vocab_size: int = 50265
    d_model: int = 1024
    encoder_layers: int = 12
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_layers: int = 12
    decoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    max_position_embeddings: int = 1024
    activation_function: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    scale_embedding: bool = False
    init_std: float = 0.02
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int = 1
    bos_token_id: int | None = 0
    eos_token_id: int = 2
    decoder_start_token_id: int | None = 2


def assemble(
    config: BartConfig,
    block: type[PostNorm] | type[PreNorm] = PostNorm,
    norm: Callable[[], nn.Module] = nn.Identity,
    sinusoidal: bool = False,
) -> EncoderDecoder:
    """Build an encoder-decoder from a configuration with BART's keys.

    `block` is PreNorm or PostNorm, `norm` creates the norm at the end of encoder and decoder, and `sinusoidal` replaces
    the learned positions with sinusoidal ones.
    """
    width, std = config.d_model, config.init_std
    activation = ACTIVATIONS[config.activation_function]

    def embed() -> Embeddings:
        learned = partial(LearnedPositions, config.max_position_embeddings, width, first=2)
        return Embeddings(
            config.vocab_size,
            width,
            positions=SinusoidalPositions(width, halves=True) if sinusoidal else learned(),
            scale=width**0.5 if config.scale_embedding else 1.0,
            norm=None if sinusoidal else LayerNorm(width),
            dropout=config.dropout,
        )

    def layer(heads: int, inner: int, decoder: bool) -> TransformerLayer:
        pattern, dropout = causal if decoder else full, config.attention_dropout
        parts: dict[str, nn.Module] = {"attention": SelfAttention(width, heads, pattern=pattern, dropout=dropout)}
        if decoder:
            parts["cross"] = CrossAttention(width, heads, dropout=dropout)
        parts["feed_forward"] = FeedForward(width, inner, activation, dropout=config.activation_dropout)
        return TransformerLayer.normalized(block, partial(LayerNorm, width), config.dropout, **parts)

    def head() -> nn.Module:
        made = vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings, bias=False)
        return FixedBias(initialize(made, std), config.vocab_size)

    encoder_layer = config.encoder_attention_heads, config.encoder_ffn_dim, False
    decoder_layer = config.decoder_attention_heads, config.decoder_ffn_dim, True
    encoder = TransformerStack(
        embed=embed(),
        layers=[layer(*encoder_layer) for _ in range(config.encoder_layers)],
        norm=norm(),
        vocabulary_head=head,
        pooler=lambda: initialize(DenseTransform(width, ACTIVATIONS["tanh"]), std),
    )
    model = EncoderDecoder(
        encoder, embed(), layers=[layer(*decoder_layer) for _ in range(config.decoder_layers)], norm=norm()
    )
    model.embed.tokens = encoder.embed.tokens
    return initialize(model, std)


def build(config: BartConfig) -> EncoderDecoder:
    """Build the BART backbone from its configuration."""
    return assemble(config)


def _layer(published: str, ours: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for a layer without cross-attention.

    `published` and `ours` are the prefixes of the layer in published checkpoints and in pretune.
    """
    return [
        ([f"{published}.self_attn.{x}_proj.{{p}}" for x in "qkv"], f"{ours}.attention.part.qkv.{{p}}"),
        (f"{published}.self_attn.out_proj.{{p}}", f"{ours}.attention.part.output.{{p}}"),
        (f"{published}.self_attn_layer_norm.{{p}}", f"{ours}.attention.norm.{{p}}"),
        (f"{published}.fc1.{{p}}", f"{ours}.feed_forward.part.inner.{{p}}"),
        (f"{published}.fc2.{{p}}", f"{ours}.feed_forward.part.output.{{p}}"),
        (f"{published}.final_layer_norm.{{p}}", f"{ours}.feed_forward.norm.{{p}}"),
    ]


_CROSS, _OUR_CROSS = "model.decoder.layers.{i}.encoder_attn", "backbone.layers.{i}.cross"

# The rows of all three families: token embedding, layers, output layer.
COMMON: list[Row] = [
    ("model.shared.weight", "backbone.encoder.embed.tokens"),
    *_layer("model.encoder.layers.{i}", "backbone.encoder.layers.{i}"),
    *_layer("model.decoder.layers.{i}", "backbone.layers.{i}"),
    (f"{_CROSS}.q_proj.{{p}}", f"{_OUR_CROSS}.part.query.{{p}}"),
    ([f"{_CROSS}.{x}_proj.{{p}}" for x in "kv"], f"{_OUR_CROSS}.part.key_value.{{p}}"),
    (f"{_CROSS}.out_proj.{{p}}", f"{_OUR_CROSS}.part.output.{{p}}"),
    (f"{_CROSS}_layer_norm.{{p}}", f"{_OUR_CROSS}.norm.{{p}}"),
    ("final_logits_bias", "heads.{p}.bias"),
    ("lm_head.weight", "heads.{p}.head.output.weight"),
]
POSITIONS: list[Row] = [
    ("model.encoder.embed_positions.weight", "backbone.encoder.embed.positions.weight"),
    ("model.decoder.embed_positions.weight", "backbone.embed.positions.weight"),
    ("model.encoder.layernorm_embedding.{p}", "backbone.encoder.embed.norm.{p}"),
    ("model.decoder.layernorm_embedding.{p}", "backbone.embed.norm.{p}"),
]
# The task heads of BART and mBART: the decoder reads the encoder's input, shifted right.
TASK_HEADS: list[Row] = [
    ("classification_head.dense.{p}", "heads.classify.pooler.dense.{p}"),
    ("classification_head.out_proj.{p}", "heads.classify.output.{p}"),
    ("qa_outputs.{p}", "heads.answer.output.{p}"),
]
# Harmless keys of config.json that BART, mBART and Marian share.
ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
HARMLESS = {
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "skips layers, only in training"),
    **dict.fromkeys(
        ("save_step", "replacing_rate", "student_encoder_layers", "student_decoder_layers"), "how it was trained"
    ),
    "extra_pos_embeddings": "from older versions of `transformers`; nothing reads it",
}


def table(*rows: Row, unused: Mapping[str, str] | None = None) -> NameTable:
    """Return the table of published and pretune parameter names of BART, mBART or Marian.

    `rows` are pairs of names besides those that all three share; `unused` maps the names of tensors that do not affect
    the output to the reason.
    """
    return NameTable(
        *COMMON,
        *rows,
        prefix="model.",
        embedding=("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        output="lm_head.weight",
        unused=dict.fromkeys(("model.encoder.version", "model.decoder.version"), "a number of fairseq's")
        | dict(unused or {}),
    )


def supported_values(
    before: bool = False, embedded: bool = True, last: bool = False, sinusoidal: bool = False
) -> dict[str, Sequence[Any]]:
    """Return the supported values of BART's keys in config.json for a model family like BART.

    `before` says whether norms come before each sublayer or after it, `embedded` whether a norm follows the embeddings,
    `last` whether a norm follows the last layer, and `sinusoidal` whether positions are sinusoidal or learned.
    """
    return {
        **ENCODER_DECODER_VALUES,
        "normalize_before": (before,),
        "normalize_embedding": (embedded,),
        "add_final_layer_norm": (last,),
        "static_position_embeddings": (sinusoidal,),
        "add_bias_logits": (False,),
    }


BART = Family(
    name="bart",
    config=BartConfig,
    build=build,
    template=Template(
        single=("start", "A", "end"),
        pair=("separator", "B", "end"),
        segments=False,
        target=("end", "start", "A", "end"),
    ),
    table=table(*POSITIONS, *TASK_HEADS),
    classes=seq2seq_classes("Bart"),
    poolings={"": "last"},
    aliases=ALIASES,
    supported={**supported_values(), "do_blenderbot_90_layernorm": (False,)},
    harmless=HARMLESS,
)
