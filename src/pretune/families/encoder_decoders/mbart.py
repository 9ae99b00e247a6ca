"""mBART (Liu et al., 2020, arXiv:2001.08210): BART with pre-norm layers and a norm at the end of each stack.

A text ends with its language token (cc25) or begins with it (mBART-50: Tang et al., 2020, arXiv:2008.00401), and the
decoder starts with the token of the target language. Objectives look a language token up by its role, `language CODE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.families.encoder_decoders import bart
from pretune.families.family import Family, seq2seq_classes
from pretune.families.parameter_names import Row
from pretune.nn.blocks import PreNorm
from pretune.nn.linear import LayerNorm
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class MBartConfig(bart.BartConfig):
    """The configuration of mBART: BART's keys with other defaults."""

    vocab_size: int = 250027
    scale_embedding: bool = False
    decoder_start_token_id: int | None = None


def build(config: MBartConfig) -> EncoderDecoder:
    """Build the mBART backbone from its configuration."""
    return bart.assemble(config, PreNorm, partial(LayerNorm, config.d_model))


FINAL_NORMS: list[Row] = [
    ("model.encoder.layer_norm.{p}", "backbone.encoder.norm.{p}"),
    ("model.decoder.layer_norm.{p}", "backbone.norm.{p}"),
]

MBART = Family(
    name="mbart",
    config=MBartConfig,
    build=build,
    template=Template(
        single=("A", "end", "language"), pair=("B", "end", "language"), segments=False, target=("language", "A", "end")
    ),
    table=bart.table(
        *bart.POSITIONS,
        *FINAL_NORMS,
        *bart.TASK_HEADS,
    ),
    classes=seq2seq_classes("MBart"),
    # The classifier reads the state of </s>, which precedes the language token.
    poolings={"": "second_to_last"},
    aliases=bart.ALIASES,
    supported=bart.supported_values(before=True, last=True),
    harmless=bart.HARMLESS,
)
