"""GPT (Radford et al., 2018, Improving Language Understanding by Generative Pre-Training).

Differences from the original: attention dropout is off by default (the fast attention kernels have none); classifiers
read the last token of the text, as in `transformers`. The paper's start and extract tokens are added with
`classify(pooling=extract)`. Two texts are joined by a separator, the paper's delimiter, which is not in the published
vocabulary and is added for tasks with text pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import DECODER_VALUES, summary_values
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable, Row, output_rows
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import Pattern, alternating, causal
from pretune.nn.blocks import PostNorm, PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, OutputLinear
from pretune.nn.output_heads import vocabulary_head
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class GPTConfig:
    """The configuration of GPT: one field per key of config.json."""

    vocab_size: int = 40478
    n_positions: int = 512
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    afn: str = "gelu"  # the tanh approximation of GELU
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def assemble(
    config: Any,
    block: type[PostNorm] | type[PreNorm],
    inner: int,
    activation: str,
    patterns: Sequence[Pattern] = (causal,),
) -> TransformerStack:
    """Build a GPT stack without initializing its parameters.

    `block` is PreNorm or PostNorm, `inner` is the feed-forward width, and the layers cycle through the attention
    patterns `patterns`.
    """
    width, dropout = config.n_embd, config.resid_pdrop
    norm = partial(LayerNorm, width, config.layer_norm_epsilon)

    def layer(pattern: Pattern) -> TransformerLayer:
        attention = SelfAttention(width, config.n_head, pattern=pattern, dropout=config.attn_pdrop)
        feed_forward = FeedForward(width, inner, ACTIVATIONS[activation])
        return TransformerLayer.normalized(block, norm, dropout, attention=attention, feed_forward=feed_forward)

    def head() -> nn.Module:
        made = vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings, bias=False)
        return initialize(made, config.initializer_range)

    return TransformerStack(
        embed=Embeddings(
            config.vocab_size, width, positions=LearnedPositions(config.n_positions, width), dropout=config.embd_pdrop
        ),
        layers=[layer(pattern) for pattern in alternating(config.n_layer, *patterns)],
        norm=norm() if block is PreNorm else None,
        vocabulary_head=head,
        classifier=partial(OutputLinear, width, bias=False),
        choice_output=partial(OutputLinear, width),
    )


def build(config: GPTConfig) -> TransformerStack:
    """Build the GPT backbone from its configuration."""
    activation = "gelu_new" if config.afn == "gelu" else config.afn
    return initialize(assemble(config, PostNorm, 4 * config.n_embd, activation), config.initializer_range)


_LAYER, _OURS = "transformer.h.{i}", "backbone.layers.{i}"
MATRICES = (
    (f"{_LAYER}.attn.c_attn.{{p}}", f"{_OURS}.attention.part.qkv.{{p}}"),
    (f"{_LAYER}.attn.c_proj.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
    (f"{_LAYER}.mlp.c_fc.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
    (f"{_LAYER}.mlp.c_proj.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
)
LAYERS = (
    *MATRICES,
    (f"{_LAYER}.ln_1.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
    (f"{_LAYER}.ln_2.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
)
# The head for multiple choice scores the last token with a linear layer; these keys must agree.
SUMMARY = summary_values("cls_index", activation="", to_labels=True)
ALIASES = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
HARMLESS = {
    "is_decoder": "it is always a decoder",
    "n_ctx": "n_positions is read instead",
    "n_special": "how it was trained",
    "predict_special_tokens": "how it was trained",
}


def table(tokens: str, positions: str, *rows: Row, unused: Mapping[str, str] | None = None) -> NameTable:
    """Return the table of published and pretune parameter names of GPT or GPT-2.

    `tokens` and `positions` are the published names of the embeddings, `rows` are further pairs of names, and `unused`
    maps the names of further tensors that do not affect the output to the reason.
    """
    return NameTable(
        (tokens, "backbone.embed.tokens"),
        (positions, "backbone.embed.positions.weight"),
        *LAYERS,
        *output_rows("lm", "lm_head.weight"),
        ("score.{p}", "heads.classify.output.{p}"),
        ("multiple_choice_head.summary.{p}", "heads.choose.output.{p}"),
        *rows,
        prefix="transformer.",
        embedding=(tokens,),
        output="lm_head.weight",
        unused={
            f"{_LAYER}.attn.bias": "the causal mask",
            f"{_LAYER}.attn.masked_bias": "the constant for masked logits",
            **(unused or {}),
        },
        transposed=[published.replace("{p}", "weight") for published, _ in MATRICES],
    )


def classes(name: str) -> dict[frozenset[str], str]:
    """Return a mapping from sets of task heads to `transformers` classes whose names begin with `name` (GPT, GPT-2)."""
    return {
        frozenset(): f"{name}Model",
        frozenset({"lm"}): f"{name}LMHeadModel",
        frozenset({"classify"}): f"{name}ForSequenceClassification",
        frozenset({"classify", "lm"}): f"{name}ForSequenceClassification",
        frozenset({"choose", "lm"}): f"{name}DoubleHeadsModel",
        frozenset({"choose"}): f"{name}DoubleHeadsModel",
    }


GPT = Family(
    name="openai-gpt",
    config=GPTConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False),
    table=table(
        "transformer.tokens_embed.weight",
        "transformer.positions_embed.weight",
        unused={"transformer.position_ids": "the numbers 0, 1, 2 …"},
    ),
    classes=classes("OpenAIGPT"),
    poolings={"": "last"},
    aliases=ALIASES,
    supported={**DECODER_VALUES, **SUMMARY, "afn": ("gelu", "relu", "silu", "swish")},
    harmless=HARMLESS,
)
