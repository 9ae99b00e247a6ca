"""GPT (Radford et al., 2018, Improving Language Understanding by Generative Pre-Training).

Departures: attention dropout is off by default (the fast attention kernels have none); classifiers read the
last token of the text, as in `transformers` (the paper adds start and extract tokens). Two texts are joined by a separator,
the paper's delimiter, which is not in the published vocabulary and is added for tasks with text pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import DECODER_VALUES
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable, Row, output_rows
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import causal
from pretune.nn.blocks import PostNorm, TransformerLayer
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


def build(config: GPTConfig) -> TransformerStack:
    """Build the GPT backbone from its configuration."""
    width, dropout = config.n_embd, config.resid_pdrop
    activation = ACTIVATIONS["gelu_new" if config.afn == "gelu" else config.afn]
    norm = partial(LayerNorm, width, config.layer_norm_epsilon)

    def layer() -> TransformerLayer:
        attention = SelfAttention(width, config.n_head, pattern=causal, dropout=config.attn_pdrop)
        feed_forward = FeedForward(width, 4 * width, activation)
        return TransformerLayer.normalized(PostNorm, norm, dropout, attention=attention, feed_forward=feed_forward)

    encoder = TransformerStack(
        embed=Embeddings(
            config.vocab_size, width, positions=LearnedPositions(config.n_positions, width), dropout=config.embd_pdrop
        ),
        layers=[layer() for _ in range(config.n_layer)],
        vocabulary_head=lambda: head_of(config),
        classifier=partial(OutputLinear, width, bias=False),
        choice_output=partial(OutputLinear, width),
    )
    return initialize(encoder, config.initializer_range)


def head_of(config: Any) -> nn.Module:
    """Build the language-model head from a configuration with GPT's keys."""
    head = vocabulary_head(config.vocab_size, config.n_embd, tied=config.tie_word_embeddings, bias=False)
    return initialize(head, config.initializer_range)


# The rows that GPT and GPT-2 share.
_LAYER = "transformer.h.{i}"
_OURS = "backbone.layers.{i}"
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
TRANSPOSED = tuple(published.replace("{p}", "weight") for published, _ in MATRICES)
OUTPUT = "lm_head.weight"
UNUSED = {f"{_LAYER}.attn.bias": "the causal mask", f"{_LAYER}.attn.masked_bias": "the constant for masked logits"}
# The head for multiple choice scores the last token with a linear layer; these keys must agree.
CHOICE: Row = ("multiple_choice_head.summary.{p}", "heads.choose.output.{p}")
SUMMARY = {
    "summary_type": ("cls_index",),
    "summary_use_proj": (True,),
    "summary_activation": ("",),
    "summary_proj_to_labels": (True,),
}
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


def classes(name: str) -> dict[frozenset[str], str]:
    """Return the classes of `transformers` that GPT and GPT-2 share, with the class prefix of a family."""
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
    table=NameTable(
        ("transformer.tokens_embed.weight", "backbone.embed.tokens"),
        ("transformer.positions_embed.weight", "backbone.embed.positions.weight"),
        *LAYERS,
        *output_rows("lm", OUTPUT),
        ("score.{p}", "heads.classify.output.{p}"),
        CHOICE,
        prefix="transformer.",
        embedding=("transformer.tokens_embed.weight",),
        output=OUTPUT,
        unused={**UNUSED, "transformer.position_ids": "the numbers 0, 1, 2 …"},
        transposed=TRANSPOSED,
    ),
    classes=classes("OpenAIGPT"),
    poolings={"": "last"},
    aliases=ALIASES,
    supported={**DECODER_VALUES, **SUMMARY, "afn": ("gelu", "relu", "silu", "swish")},
    harmless=HARMLESS,
)
