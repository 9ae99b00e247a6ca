"""mBART (Liu et al., 2020, arXiv:2001.08210): BART with pre-norm layers and a norm at the end of each stack.

A text ends with its language (cc25), or begins with it (mBART-50: Tang et al., 2020, arXiv:2008.00401), and the decoder
starts from the language it shall write. Which one that is, an objective has to say: its role is `language CODE`.

Departures: as BART's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.families.encoder_decoders.bart import (
    ALIASES,
    COMMON,
    EMBEDDING,
    HARMLESS,
    ONLY,
    OUTPUT,
    POSITIONS,
    TASK_HEADS,
    UNUSED,
    BartConfig,
    classes,
    embeddings,
    norms,
    wire,
)
from pretune.families.family import Family, Table
from pretune.nn.blocks import PreNorm
from pretune.nn.linear import LayerNorm
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class MBartConfig(BartConfig):
    """BART's keys with other defaults."""

    vocab_size: int = 250027
    scale_embedding: bool = False
    decoder_start_token_id: int | None = None


def build(config: MBartConfig) -> EncoderDecoder:
    """The whole wiring."""
    return wire(config, lambda: embeddings(config), PreNorm, partial(LayerNorm, config.d_model))


MBART = Family(
    name="mbart",
    config=MBartConfig,
    build=build,
    template=Template(
        single=("A", "end", "language"),
        pair=("B", "end", "language"),
        segments=False,
        target=("language", "A", "end"),
    ),
    table=Table(
        *COMMON,
        *POSITIONS,
        ("model.encoder.layer_norm.{p}", "backbone.encoder.norm.{p}"),
        ("model.decoder.layer_norm.{p}", "backbone.norm.{p}"),
        *TASK_HEADS,
        prefix="model.",
        embedding=EMBEDDING,
        output=OUTPUT,
        unused=UNUSED,
    ),
    classes=classes("MBart"),
    # The classifier reads the state of </s>, which stands before the language.
    poolings={"": "before_last"},
    aliases=ALIASES,
    only={
        **ONLY,
        **norms(before=True, embedded=True, last=True),
        "static_position_embeddings": (False,),
        "add_bias_logits": (False,),
    },
    harmless=HARMLESS,
)
