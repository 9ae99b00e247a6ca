"""GPT (Radford et al., 2018, Improving Language Understanding by Generative Pre-Training).

Departures: attention dropout is off unless asked for (the fast attention paths have none); a classifier stands on the
last token of the text, as in `transformers` (the paper adds start and extract tokens). Between two texts stands a separator,
the paper's delimiter: a token that the published vocabulary lacks, and that is added when a task with pairs is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from pretune.backbones.encoder import Encoder
from pretune.errors import PretuneError
from pretune.families.family import Family, Table
from pretune.nn.attention import Attention
from pretune.nn.blocks import Layer, PostNorm
from pretune.nn.embeddings import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.heads import VocabularyHead
from pretune.nn.initialize import initialize
from pretune.nn.linear import LayerNorm, OutputLinear
from pretune.nn.patterns import causal
from pretune.nn.positions import Learned
from pretune.text.sequences import Template


@dataclass(frozen=True)
class GPTConfig:
    """Keys of config.json."""

    vocab_size: int = 40478
    n_positions: int = 512
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    afn: str = "gelu"  # which is GELU by a tanh here
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def build(config: GPTConfig) -> Encoder:
    """The whole wiring."""
    check_tied("openai-gpt", config.tie_word_embeddings)
    width, dropout = config.n_embd, config.resid_pdrop
    activation = ACTIVATIONS["gelu_new" if config.afn == "gelu" else config.afn]
    norm = partial(LayerNorm, width, config.layer_norm_epsilon)

    def layer() -> Layer:
        attention = Attention(width, config.n_head, pattern=causal, dropout=config.attn_pdrop)
        feed_forward = FeedForward(width, 4 * width, activation)
        return Layer(
            attention=PostNorm(attention, norm(), dropout), feed_forward=PostNorm(feed_forward, norm(), dropout)
        )

    encoder = Encoder(
        embed=Embeddings(
            config.vocab_size, width, positions=Learned(config.n_positions, width), dropout=config.embd_pdrop
        ),
        layers=[layer() for _ in range(config.n_layer)],
        vocabulary_head=lambda: VocabularyHead(config.vocab_size, bias=False),
        pooler=nn.Identity,
        classifier=partial(OutputLinear, width, bias=False),
    )
    return initialize(encoder, config.initializer_range)


def check_tied(family: str, tied: bool) -> None:
    """A second matrix for the vocabulary has no place here."""
    if not tied:
        raise PretuneError(f"{family}: tie_word_embeddings false is not supported; logits come from the embeddings")


# What GPT and GPT-2 share.
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
TRANSPOSED = tuple(theirs.replace("{p}", "weight") for theirs, _ in MATRICES)
# The tied softmax, causal masks that were once saved, and the head for multiple choice.
IGNORED = (
    "lm_head.weight",
    "transformer.lm_head.weight",
    f"{_LAYER}.attn.bias",
    f"{_LAYER}.attn.masked_bias",
    "multiple_choice_head.summary.{p}",
)

GPT = Family(
    name="openai-gpt",
    config=GPTConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False),
    table=Table(
        ("transformer.tokens_embed.weight", "backbone.embed.tokens"),
        ("transformer.positions_embed.weight", "backbone.embed.positions.weight"),
        *LAYERS,
        ("score.{p}", "heads.classify.output.{p}"),
        prefix="transformer.",
        ignored=(*IGNORED, "transformer.position_ids"),
        transposed=TRANSPOSED,
    ),
    classes={
        frozenset(): "OpenAIGPTModel",
        frozenset({"lm"}): "OpenAIGPTLMHeadModel",
        frozenset({"classify"}): "OpenAIGPTForSequenceClassification",
        frozenset({"classify", "lm"}): "OpenAIGPTForSequenceClassification",
    },
    poolings={"": "last"},
)
