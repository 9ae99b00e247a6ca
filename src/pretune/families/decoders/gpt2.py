"""GPT-2 (Radford et al., 2019, Language Models are Unsupervised Multitask Learners).

Differences from the original: attention dropout is off by default (the fast attention kernels have none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import DECODER_VALUES
from pretune.families.decoders import gpt
from pretune.families.family import Family, token_classes
from pretune.families.parameter_names import TOKEN_HEADS
from pretune.nn.attention.patterns import Pattern, causal
from pretune.nn.blocks import PreNorm
from pretune.nn.initialization import initialize
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class GPT2Config:
    """The configuration of GPT-2: one field per key of config.json."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # None: 4 · n_embd
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    # Written even if None: `transformers` would otherwise assume the ids of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def build(config: GPT2Config, patterns: Sequence[Pattern] = (causal,)) -> TransformerStack:
    """Build the GPT-2 backbone from its configuration; its layers cycle through the attention `patterns`."""
    stack = gpt.assemble(config, PreNorm, config.n_inner or 4 * config.n_embd, config.activation_function, patterns)
    return initialize(stack, config.initializer_range, output_scale=(2 * config.n_layer) ** -0.5)


GPT2 = Family(
    name="gpt2",
    config=GPT2Config,
    build=build,
    # A single text has no special tokens; documents are separated by <|endoftext|>.
    template=Template(single=("A",), pair=("separator", "B"), segments=False, document=("A", "end")),
    table=gpt.table(
        "transformer.wte.weight",
        "transformer.wpe.weight",
        ("transformer.ln_f.{p}", "backbone.norm.{p}"),
        *TOKEN_HEADS,
    ),
    classes={**gpt.classes("GPT2"), **token_classes("GPT2")},
    poolings={"": "last"},
    aliases=gpt.ALIASES,
    # Attention is scaled by the head width, in the same way in all layers.
    supported={
        **DECODER_VALUES,
        **gpt.SUMMARY,
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
    harmless={
        **gpt.HARMLESS,
        "hidden_dropout": "dropout of a head",
        "reorder_and_upcast_attn": "the precision of attention, which is always fp32 here",
    },
)
