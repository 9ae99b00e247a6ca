"""T5 (Raffel et al., 2020, arXiv:1910.10683), its version 1.1, and mT5 (Xue et al., 2021, arXiv:2010.11934).

Version 1.1 and mT5 have gated feed-forward layers and an untied output matrix; the first version of T5 ties the output
matrix to the token embedding, and divides the hidden states by √width before multiplying them with it.

`transformers` also has the encoder alone (`T5EncoderModel`, as in Sentence-T5, Ni et al., 2022, arXiv:2108.08877).

Differences from the original: attention dropout is off (the fast attention kernels have none); an untied output matrix
is initialized by its fan-in (`transformers` uses a standard deviation of 1, which gives initial logits of the order
√width).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_DECODER_VALUES
from pretune.families.family import Family, seq2seq_classes
from pretune.families.parameter_names import SEQ2SEQ_OBJECTIVES, NameTable, Row
from pretune.nn.attention.multi_head import CrossAttention, RelativeAttention
from pretune.nn.attention.patterns import causal, full
from pretune.nn.attention.relative_position_bias import T5RelativeBias
from pretune.nn.blocks import PreNorm, TransformerLayer
from pretune.nn.dropout import Dropout
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward, GatedFeedForward
from pretune.nn.initialization import initialize_by_fan_in
from pretune.nn.linear import RMSNorm
from pretune.nn.output_heads import DenseTransform, Scale, vocabulary_head
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class T5Config:
    """The configuration of T5: one field per key of config.json."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None  # None: num_layers
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None  # in newer files; older ones derive it from tie_word_embeddings
    is_encoder_decoder: bool = True
    pad_token_id: int = 0
    eos_token_id: int = 1
    decoder_start_token_id: int = 0

    def __post_init__(self) -> None:
        if self.scale_decoder_outputs is None:  # older files: scaled if tied
            object.__setattr__(self, "scale_decoder_outputs", self.tie_word_embeddings)

    @property
    def gated(self) -> bool:
        """Return whether the feed-forward layers of T5 are gated."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        """Return the name of the activation function of T5's feed-forward layers."""
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.gated and name == "gelu" else name  # the published meaning of gated-gelu


@dataclass(frozen=True)
class MT5Config(T5Config):
    """The configuration of mT5: T5's keys with other defaults."""

    vocab_size: int = 250112
    d_ff: int = 1024
    num_layers: int = 8
    num_heads: int = 6
    feed_forward_proj: str = "gated-gelu"
    tie_word_embeddings: bool = False
    scale_decoder_outputs: bool | None = False


def build(config: T5Config) -> EncoderDecoder:
    """Build the T5 backbone: an encoder and a decoder that share the token embedding."""
    encoder = _encoder(config)
    model = EncoderDecoder(encoder, **_stack(config, decoder=True))
    model.embed.tokens = encoder.embed.tokens
    return initialize_by_fan_in(model, config.initializer_factor)


def _encoder(config: T5Config) -> TransformerStack:
    """Assemble the T5 encoder, without initializing it."""
    width, factor = config.d_model, config.initializer_factor

    def head() -> nn.Module:
        scale, tied = Scale(width**-0.5) if config.scale_decoder_outputs else None, config.tie_word_embeddings
        made = vocabulary_head(config.vocab_size, width, tied=tied, transform=scale, bias=False)
        return initialize_by_fan_in(made, factor)

    pooler = partial(DenseTransform, width, ACTIVATIONS["tanh"])
    parts = _stack(config, decoder=False)
    return TransformerStack(**parts, vocabulary_head=head, pooler=lambda: initialize_by_fan_in(pooler(), factor))


def _stack(config: T5Config, decoder: bool) -> dict[str, Any]:
    """Return the parts of the T5 encoder or decoder: embeddings, relative position bias, layers, and the final norm.

    They are keyword arguments of the class of the stack.
    """
    width, dropout = config.d_model, config.dropout_rate
    layers = config.num_decoder_layers or config.num_layers if decoder else config.num_layers
    return {
        "embed": Embeddings(config.vocab_size, width, dropout=dropout),
        "score": _relative_bias(config, bidirectional=not decoder),
        "layers": [_layer(config, decoder) for _ in range(layers)],
        "norm": nn.Sequential(RMSNorm(width, config.layer_norm_epsilon), Dropout(dropout)),
    }


def _layer(config: T5Config, decoder: bool) -> TransformerLayer:
    """Build a T5 layer of the encoder, or of the decoder with cross-attention."""
    width, heads, dropout = config.d_model, config.num_heads, config.dropout_rate
    attention: dict[str, Any] = {"head_width": config.d_kv, "scale": 1.0, "bias": False}
    pattern = causal if decoder else full
    parts: dict[str, nn.Module] = {"attention": RelativeAttention(width, heads, pattern=pattern, **attention)}
    if decoder:
        parts["cross"] = CrossAttention(width, heads, **attention)
    kind = GatedFeedForward if config.gated else FeedForward
    name = "gated_feed_forward" if config.gated else "feed_forward"  # they have different published names
    parts[name] = kind(width, config.d_ff, ACTIVATIONS[config.activation], bias=False, dropout=dropout)
    norm = partial(RMSNorm, width, config.layer_norm_epsilon)
    return TransformerLayer.normalized(PreNorm, norm, dropout, **parts)


def _relative_bias(config: T5Config, bidirectional: bool) -> T5RelativeBias:
    """Build the relative position bias of the T5 encoder (bidirectional) or decoder."""
    buckets, furthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    if buckets < 4 or furthest <= buckets // 2:
        raise PretuneError(
            f"t5: relative_attention_num_buckets {buckets} with relative_attention_max_distance {furthest} is not supported; "
            "in config.json, use at least 4 buckets, and a maximum distance of more than half the number of buckets"
        )
    return T5RelativeBias(config.num_heads, buckets, furthest, bidirectional, width=config.d_model)


def _attention(published: str, ours: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for a T5 attention sublayer and its norm.

    `published` and `ours` are the prefixes of the sublayer in published checkpoints and in pretune.
    """
    block, _, _ = published.rpartition(".")
    return [
        (f"{block}.layer_norm.weight", f"{ours}.norm.weight"),
        (f"{published}.q.weight", f"{ours}.part.query.weight"),
        ([f"{published}.k.weight", f"{published}.v.weight"], f"{ours}.part.key_value.weight"),
        (f"{published}.o.weight", f"{ours}.part.output.weight"),
    ]


def _feed_forward(published: str, ours: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for a T5 feed-forward sublayer and its norm.

    `published` and `ours` are the prefixes of the sublayer in published checkpoints and in pretune.
    """
    dense = f"{published}.DenseReluDense"
    rows: list[Row] = [
        (f"{dense}.wi.weight", f"{ours}.feed_forward.part.inner.weight"),
        ([f"{dense}.wi_0.weight", f"{dense}.wi_1.weight"], f"{ours}.gated_feed_forward.part.inner.weight"),
    ]
    for kind in ("feed_forward", "gated_feed_forward"):
        rows.append((f"{dense}.wo.weight", f"{ours}.{kind}.part.output.weight"))
        rows.append((f"{published}.layer_norm.weight", f"{ours}.{kind}.norm.weight"))
    return rows


# The relative position bias of a stack, which the published layout keeps in the first layer.
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def _encoder_rows(ours: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for T5's token embedding and encoder.

    `ours` is the prefix of the encoder in pretune.
    """
    return [
        ("shared.weight", f"{ours}.embed.tokens"),
        *_attention("encoder.block.{i}.layer.0.SelfAttention", f"{ours}.layers.{{i}}.attention"),
        *_feed_forward("encoder.block.{i}.layer.1", f"{ours}.layers.{{i}}"),
        (f"encoder.{_BIAS}", f"{ours}.score.weight"),
        ("encoder.final_layer_norm.weight", f"{ours}.norm.0.weight"),
    ]


TABLE = NameTable(
    *_encoder_rows("backbone.encoder"),
    *_attention("decoder.block.{i}.layer.0.SelfAttention", "backbone.layers.{i}.attention"),
    *_attention("decoder.block.{i}.layer.1.EncDecAttention", "backbone.layers.{i}.cross"),
    *_feed_forward("decoder.block.{i}.layer.2", "backbone.layers.{i}"),
    (f"decoder.{_BIAS}", "backbone.score.weight"),
    ("decoder.final_layer_norm.weight", "backbone.norm.0.weight"),
    ("classification_head.dense.{p}", "heads.classify.pooler.dense.{p}"),
    ("classification_head.out_proj.{p}", "heads.classify.output.{p}"),
    ("qa_outputs.{p}", "heads.answer.output.{p}"),
    *(("lm_head.weight", f"heads.{objective}.output.weight") for objective in SEQ2SEQ_OBJECTIVES),
    embedding=("shared.weight",),
    output="lm_head.weight",
    unused={
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "in the first checkpoints; never used"
    },
    unsupported={"classifier.{p}": "the tagging head, which uses only the encoder"},
    renamed={
        "transformer.": "",  # the prefix of classification checkpoints
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)


ENCODER_TABLE = NameTable(
    *_encoder_rows("backbone"),
    ("classifier.{p}", "heads.tag.output.{p}"),
    embedding=("shared.weight",),
    renamed={"transformer.": "", "encoder.embed_tokens.weight": "shared.weight"},
)
TEMPLATE = Template(single=("A", "end"), pair=("B", "end"), segments=False, target=("padding", "A", "end"))


def _family(name: str, config: type[T5Config], prefix: str, **only: Sequence[Any]) -> Family:
    """Return the model family of T5 or mT5, called `name`.

    `prefix` begins the names of its `transformers` classes; `only` has further keys of config.json with the values that
    this family supports.
    """
    family = Family(
        name=name,
        config=config,
        build=build,
        template=TEMPLATE,
        table=TABLE,
        classes=seq2seq_classes(prefix),
        poolings={"": "last"},
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        supported={
            **ENCODER_DECODER_VALUES,
            # Newer files repeat the information of feed_forward_proj.
            "dense_act_fn": lambda config: (config.activation,),
            "is_gated_act": lambda config: (config.gated,),
            **only,
        },
        harmless={"n_positions": "positions are relative, so any length is possible"},
    )
    encoder = replace(
        family,
        build=lambda config: initialize_by_fan_in(_encoder(config), config.initializer_factor),
        template=replace(TEMPLATE, target=()),
        table=ENCODER_TABLE,
        classes={frozenset(): f"{prefix}EncoderModel", frozenset({"tag"}): f"{prefix}ForTokenClassification"},
        other_classes={},
        poolings={"": "mean"},  # there is no classification token; Sentence-T5 uses the mean
        supported={**family.supported, "is_encoder_decoder": (True, False)},  # both occur in published files
    )
    return replace(family, variants=(encoder,))


T5 = _family("t5", T5Config, "T5")
MT5 = _family("mt5", MT5Config, "MT5", scale_decoder_outputs=(False,))
