"""Transformer-XL (Dai et al., 2019, arXiv:1901.02860): attention to earlier segments, by relative positions.

Parameter names are those of `transformers` 4, the last version with this model; tests compare with its version 4.57.1.

Differences from the original: attention dropout is off by default; empty memory slots are masked (the published code
attends to zeros there); no token attends across the start of a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.nn.attention.multi_head import RelativeAttention
from pretune.nn.attention.patterns import causal, window
from pretune.nn.attention.score_mods import TransformerXLScore
from pretune.nn.blocks import PostNorm, TransformerLayer
from pretune.nn.embedding.adaptive_softmax import AdaptiveEmbeddings, AdaptiveHead
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class TransfoXLConfig:
    """The configuration of Transformer-XL: one field per key of config.json."""

    vocab_size: int = 267735
    cutoffs: Sequence[int] = (20000, 40000, 200000)  # first ids of the rarer token clusters; empty: one cluster
    d_model: int = 1024
    d_embed: int = 1024
    n_head: int = 16
    d_head: int = 64
    d_inner: int = 4096
    div_val: int = 4  # factor by which the embeddings of each cluster are narrower than those of the previous one
    n_layer: int = 18
    mem_len: int = 1600
    clamp_len: int = 1000  # larger distances are clipped; 0 or less: no clipping
    same_length: bool = True  # each token attends to `mem_len` tokens, including itself
    dropout: float = 0.1
    dropatt: float = 0.0
    pre_lnorm: bool = False
    untie_r: bool = True
    attn_type: int = 0
    proj_share_all_but_first: bool = True
    tie_word_embeddings: bool = True
    layer_norm_epsilon: float = 1e-5
    init_std: float = 0.02
    pad_token_id: int | None = None
    eos_token_id: int | None = None


def build(config: TransfoXLConfig) -> TransformerStack:
    """Build the Transformer-XL backbone from its configuration."""
    if config.div_val < 2:
        raise PretuneError(
            f"transfo-xl: div_val {config.div_val} is not supported; use a model with a div_val of 2 or more"
        )
    if (
        list(config.cutoffs) != sorted(set(config.cutoffs))
        or config.d_embed // config.div_val ** len(config.cutoffs) < 1
    ):
        raise PretuneError(
            f"transfo-xl: cutoffs {list(config.cutoffs)[:CLUSTERS]} must increase, and d_embed, {config.d_embed}, must be at "
            f"least div_val, {config.div_val}, to the power of the number of cutoffs; correct these keys in config.json"
        )
    width, heads, dropout = config.d_model, config.n_head, config.dropout
    furthest = config.clamp_len if config.clamp_len > 0 else None
    pattern = causal & window(config.mem_len - 1) if config.same_length and config.mem_len > 0 else causal
    norm = partial(LayerNorm, width, config.layer_norm_epsilon)

    def layer() -> TransformerLayer:
        score = TransformerXLScore(width, heads, config.d_head, max_distance=furthest)
        attention = RelativeAttention(
            width,
            heads,
            score,
            head_width=config.d_head,
            pattern=pattern,
            content_bias=True,
            bias=False,
            dropout=config.dropatt,
        )
        feed_forward = FeedForward(width, config.d_inner, ACTIVATIONS["relu"], dropout=dropout)
        return TransformerLayer.normalized(PostNorm, norm, dropout, attention=attention, feed_forward=feed_forward)

    embed: Any = AdaptiveEmbeddings(
        config.vocab_size, width, config.d_embed, config.cutoffs, config.div_val, dropout=dropout
    )
    encoder = TransformerStack(
        embed=embed,
        layers=[layer() for _ in range(config.n_layer)],
        vocabulary_head=lambda: AdaptiveHead(embed, config.init_std),
        classifier=partial(Linear, width, bias=False),
        memory=config.mem_len,
    )
    return initialize(encoder, config.init_std)


CLUSTERS = 10  # the most clusters of tokens by frequency
_ATTENTION, _FEED_FORWARD = "transformer.layers.{i}.dec_attn", "transformer.layers.{i}.pos_ff"
_OURS = "backbone.layers.{i}"

TRANSFO_XL = Family(
    name="transfo-xl",
    config=TransfoXLConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False, document=("A", "end")),
    table=NameTable(
        ("transformer.word_emb.emb_layers.{i}.weight", "backbone.embed.tables.{i}"),
        ("transformer.word_emb.emb_projs.{i}", "backbone.embed.projects.{i}.weight"),
        (f"{_ATTENTION}.qkv_net.weight.0", f"{_OURS}.attention.part.query.weight"),
        ([f"{_ATTENTION}.qkv_net.weight.{part}" for part in (1, 2)], f"{_OURS}.attention.part.key_value.weight"),
        (f"{_ATTENTION}.o_net.weight", f"{_OURS}.attention.part.output.weight"),
        (f"{_ATTENTION}.r_net.weight", f"{_OURS}.attention.part.score.position"),
        (f"{_ATTENTION}.r_w_bias", f"{_OURS}.attention.part.content_bias"),
        (f"{_ATTENTION}.r_r_bias", f"{_OURS}.attention.part.score.position_bias"),
        (f"{_ATTENTION}.layer_norm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_FEED_FORWARD}.CoreNet.0.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_FEED_FORWARD}.CoreNet.3.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        (f"{_FEED_FORWARD}.layer_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        ("crit.out_projs.0", "heads.lm.project"),
        ("crit.out_layers.{i}.bias", "heads.lm.biases.{i}"),
        ("crit.cluster_{p}", "heads.lm.cluster.{p}"),
        ("score.{p}", "heads.classify.output.{p}"),
        prefix="transformer.",
        equal={
            "crit.out_layers.{i}.weight": "transformer.word_emb.emb_layers.{i}.weight",
            **{f"crit.out_projs.{i}": f"transformer.word_emb.emb_projs.{i}" for i in range(1, CLUSTERS)},
        },
        unused={"transformer.pos_emb.inv_freq": "computed from d_model"},
        stacked={f"{_ATTENTION}.qkv_net.weight": 3},
    ),
    classes={
        frozenset(): "TransfoXLModel",
        frozenset({"lm"}): "TransfoXLLMHeadModel",
        frozenset({"classify"}): "TransfoXLForSequenceClassification",
        frozenset({"classify", "lm"}): "TransfoXLForSequenceClassification",
    },
    poolings={"": "last"},
    aliases={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    # The values of the released checkpoint.
    supported={
        "pre_lnorm": (False,),
        "untie_r": (True,),
        "attn_type": (0,),
        "proj_share_all_but_first": (True,),
        "tie_word_embeddings": (True,),
        "adaptive": (True,),
        "tie_weight": (True,),
        "tie_projs": lambda config: ([False, *[True] * len(config.cutoffs)],),
        "sample_softmax": (-1,),
        "ext_len": (0,),
    },
    harmless={
        **dict.fromkeys(("init", "init_range", "proj_init_std"), "how parameters start"),
        "tgt_len": "the segment length in training",
    },
)
