"""XLNet (Yang et al., 2019, arXiv:1906.08237): Transformer-XL's layers, read in any order.

A memory of `mem_len` tokens is at work where batches go on from one another. Biases of content and positions are every
layer's own, as in the released checkpoints.

Departures: attention dropout is off (the published models have that of everything else there too); nor are the vectors of
positions and the last states dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.encoder import Encoder
from pretune.families.config_keys import ENCODER
from pretune.families.family import TOKEN_HEADS, Family, Table, output_rows, token_classes
from pretune.nn.attention.multi_head import ScoredAttention, split_heads
from pretune.nn.attention.score_mods import TransformerXL
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.embeddings import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import Transform, vocabulary_head
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class XLNetConfig:
    """Keys of config.json."""

    vocab_size: int = 32000
    d_model: int = 1024
    n_layer: int = 24
    n_head: int = 16
    d_head: int | None = None  # the width over the heads
    d_inner: int = 4096
    ff_activation: str = "gelu"
    attn_type: str = "bi"
    dropout: float = 0.1
    mem_len: int | None = None  # tokens of the batch before that are remembered
    clamp_len: int = -1  # distances beyond it count as it; -1: none do
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    summary_type: str = "last"
    summary_use_proj: bool = True
    summary_activation: str = "tanh"
    tie_word_embeddings: bool = True
    # Written even if unknown: `transformers` would put in those of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def build(config: XLNetConfig) -> Encoder:
    """The whole wiring."""
    width, heads, dropout = config.d_model, config.n_head, config.dropout
    head_width = config.d_head or split_heads(width, heads)
    furthest = config.clamp_len if config.clamp_len > 0 else None
    activation = ACTIVATIONS[config.ff_activation]
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def layer() -> Layer:
        score = TransformerXL(width, heads, head_width, segments=True, furthest=furthest)
        attention = ScoredAttention(width, heads, score, head_width=head_width, content_bias=True, bias=False)
        feed_forward = FeedForward(width, config.d_inner, activation, dropout=dropout)
        return Layer(
            attention=PostNorm(attention, norm(), dropout), feed_forward=PostNorm(feed_forward, norm(), dropout)
        )

    encoder = Encoder(
        embed=Embeddings(config.vocab_size, width, dropout=dropout, query=True),
        layers=[layer() for _ in range(config.n_layer)],
        vocabulary_head=lambda: initialize(
            vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings), config.initializer_range
        ),
        pooler=lambda: initialize(Transform(width, ACTIVATIONS[config.summary_activation]), config.initializer_range),
        memory=config.mem_len or 0,
    )
    return initialize(encoder, config.initializer_range)


_ATTENTION, _FEED_FORWARD = "transformer.layer.{i}.rel_attn", "transformer.layer.{i}.ff"
_OURS = "backbone.layers.{i}"

XLNET = Family(
    name="xlnet",
    config=XLNetConfig,
    build=build,
    # The classifier's token is the last one, in a segment of its own.
    template=Template(single=("A", "separator"), pair=("B", "separator"), last=("start",)),
    table=Table(
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
        ("sequence_summary.summary.{p}", "heads.classify.pooler.dense.{p}"),
        ("logits_proj.{p}", "heads.classify.output.{p}"),
        ("sequence_summary.summary.{p}", "heads.choose.pooler.dense.{p}"),
        ("logits_proj.{p}", "heads.choose.output.{p}"),
        *TOKEN_HEADS,
        prefix="transformer.",
        embedding=("transformer.word_embedding.weight",),
        output="lm_loss.weight",
        unsupported=dict.fromkeys(
            (
                "start_logits.dense.{p}",
                "end_logits.dense_{i}.{p}",
                "end_logits.LayerNorm.{p}",
                "answer_class.dense_{i}.{p}",
            ),
            "the head for questions by beam search",
        ),
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
    closed_classes={"XLNetForQuestionAnswering": "a head for questions by beam search over starts and ends"},
    poolings={"": "last"},
    aliases={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    only={
        **ENCODER,
        "attn_type": ("bi",),  # which an order restricts
        "bi_data": (False,),
        "same_length": (False,),
        "reuse_len": (0,),
        "untie_r": (True,),
        # What the heads for classification and multiple choice stand on.
        "summary_type": ("last",),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (False,),
    },
    harmless={
        **dict.fromkeys(("use_mems_eval", "use_mems_train"), "pretune remembers where batches go on from one another"),
        **dict.fromkeys(("start_n_top", "end_n_top"), "of the head for questions by beam search, which is left out"),
    },
)
