"""XLNet (Yang et al., 2019, arXiv:1906.08237): Transformer-XL with permuted factorization orders.

A memory of `mem_len` tokens is used in stateful batches. Each layer has its own content and position biases, as in the
released checkpoints.

Differences from the original: attention dropout is off (the published models use `dropout` there too); position
embeddings and the last hidden states have no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.decoders.transfo_xl import TRANSFO_XL
from pretune.families.encoders.xlm import BEAM_CLASS, BEAM_KEYS, beam_head
from pretune.families.family import Family, token_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, output_rows, pooled_heads
from pretune.nn.attention.multi_head import RelativeAttention, head_width_of
from pretune.nn.attention.score_mods import TransformerXLScore
from pretune.nn.blocks import PostNorm, TransformerLayer
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, vocabulary_head
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class XLNetConfig:
    """The configuration of XLNet: one field per key of config.json."""

    vocab_size: int = 32000
    d_model: int = 1024
    n_layer: int = 24
    n_head: int = 16
    d_head: int | None = None  # d_model / n_head
    d_inner: int = 4096
    ff_activation: str = "gelu"
    attn_type: str = "bi"
    dropout: float = 0.1
    mem_len: int | None = None  # tokens of earlier segments to remember
    clamp_len: int = -1  # larger distances are clipped; -1: no clipping
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    summary_type: str = "last"
    summary_use_proj: bool = True
    summary_activation: str = "tanh"
    tie_word_embeddings: bool = True
    # Written even if None: `transformers` would otherwise assume the ids of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def build(config: XLNetConfig) -> TransformerStack:
    """Build the XLNet backbone from its configuration."""
    width, heads, dropout = config.d_model, config.n_head, config.dropout
    head_width = config.d_head or head_width_of(width, heads)
    furthest = config.clamp_len if config.clamp_len > 0 else None
    activation = ACTIVATIONS[config.ff_activation]
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def layer() -> TransformerLayer:
        score = TransformerXLScore(width, heads, head_width, segments=True, max_distance=furthest)
        attention = RelativeAttention(width, heads, score, head_width=head_width, content_bias=True, bias=False)
        feed_forward = FeedForward(width, config.d_inner, activation, dropout=dropout)
        return TransformerLayer.normalized(PostNorm, norm, dropout, attention=attention, feed_forward=feed_forward)

    encoder = TransformerStack(
        embed=Embeddings(config.vocab_size, width, dropout=dropout, query=True),
        layers=[layer() for _ in range(config.n_layer)],
        vocabulary_head=lambda: initialize(
            vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings), config.initializer_range
        ),
        pooler=lambda: initialize(
            DenseTransform(width, ACTIVATIONS[config.summary_activation]), config.initializer_range
        ),
        memory=config.mem_len or 0,
    )
    return initialize(encoder, config.initializer_range)


_ATTENTION, _FEED_FORWARD = "transformer.layer.{i}.rel_attn", "transformer.layer.{i}.ff"
_OURS = "backbone.layers.{i}"

XLNET = Family(
    name="xlnet",
    config=XLNetConfig,
    build=build,
    # The token for classification comes last and has its own segment.
    template=Template(single=("A", "separator"), pair=("B", "separator"), last=("start",)),
    table=NameTable(
        ("transformer.word_embedding.weight", "backbone.embed.tokens"),
        ("transformer.mask_emb", "backbone.embed.query"),
        (f"{_ATTENTION}.q", f"{_OURS}.attention.part.query.weight"),
        ([f"{_ATTENTION}.k", f"{_ATTENTION}.v"], f"{_OURS}.attention.part.key_value.weight"),
        (f"{_ATTENTION}.o", f"{_OURS}.attention.part.output.weight"),
        (f"{_ATTENTION}.r", f"{_OURS}.attention.part.score.position"),
        (f"{_ATTENTION}.r_w_bias", f"{_OURS}.attention.part.content_bias"),
        (f"{_ATTENTION}.r_r_bias", f"{_OURS}.attention.part.score.position_bias"),
        (f"{_ATTENTION}.r_s_bias", f"{_OURS}.attention.part.score.segment_bias"),
        (f"{_ATTENTION}.seg_embed", f"{_OURS}.attention.part.score.segment"),
        (f"{_ATTENTION}.layer_norm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_FEED_FORWARD}.layer_1.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_FEED_FORWARD}.layer_2.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        (f"{_FEED_FORWARD}.layer_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        *output_rows("plm", "lm_loss.weight", "lm_loss.bias"),
        *pooled_heads("sequence_summary.summary.{p}", "logits_proj.{p}"),
        *TOKEN_HEADS,
        prefix="transformer.",
        embedding=("transformer.word_embedding.weight",),
        output="lm_loss.weight",
        unsupported=beam_head(),
        transposed=[f"{_ATTENTION}.{part}" for part in "qkvr"],
        folded={f"{_ATTENTION}.{part}": f"{_ATTENTION}.r_w_bias" for part in "qkvor"},
    ),
    classes={
        frozenset(): "XLNetModel",
        frozenset({"plm"}): "XLNetLMHeadModel",
        frozenset({"classify"}): "XLNetForSequenceClassification",
        frozenset({"choose"}): "XLNetForMultipleChoice",
        **token_classes("XLNet", "QuestionAnsweringSimple"),
    },
    unsupported_classes={"XLNetForQuestionAnswering": BEAM_CLASS},
    poolings={"": "last"},
    aliases=TRANSFO_XL.aliases,
    supported={
        **ENCODER_VALUES,
        "attn_type": ("bi",),  # restricted by the factorization order
        "bi_data": (False,),
        "same_length": (False,),
        "reuse_len": (0,),
        "untie_r": (True,),
        # The only supported inputs of the heads for classification and multiple choice.
        "summary_type": ("last",),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (False,),
    },
    harmless={
        **dict.fromkeys(("use_mems_eval", "use_mems_train"), "pretune uses the memory in stateful batches"),
        **BEAM_KEYS,
    },
)
