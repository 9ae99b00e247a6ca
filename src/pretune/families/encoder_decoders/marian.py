"""The Transformer (Vaswani et al., 2017, arXiv:1706.03762), in Marian's layout (Junczys-Dowmunt et al., 2018).

The original has no layout in `transformers`; Marian's is the closest: post-norm, sinusoidal positions, one token
embedding scaled by √width and shared by encoder, decoder and output layer. Differences from the paper: in each position
vector all sines come before all cosines, as in the authors' code (a permutation that learned weights absorb); the
activation is configurable: relu in the paper, swish in the published Marian models.

Differences from the original: attention dropout is off by default (the fast attention kernels have none).
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.families.encoder_decoders import bart
from pretune.families.family import Family
from pretune.families.parameter_names import SEQ2SEQ_OBJECTIVES
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class MarianConfig(bart.BartConfig):
    """The configuration of Marian: BART's keys with other defaults, and the key for shared token embeddings."""

    vocab_size: int = 58101
    activation_function: str = "gelu"
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    pad_token_id: int = 58100
    bos_token_id: int | None = None
    eos_token_id: int = 0
    decoder_start_token_id: int | None = 58100


def build(config: MarianConfig) -> EncoderDecoder:
    """Build the Marian backbone from its configuration."""
    return bart.assemble(config, sinusoidal=True)


MARIAN = Family(
    name="marian",
    config=MarianConfig,
    build=build,
    template=Template(single=("A", "end"), pair=("B", "end"), segments=False, target=("padding", "A", "end")),
    table=bart.table(
        unused=dict.fromkeys(
            ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
            "sinusoidal positions, computed for any length",
        )
    ),
    classes={
        frozenset(): "MarianModel",
        **{frozenset({objective}): "MarianMTModel" for objective in SEQ2SEQ_OBJECTIVES},
    },
    poolings={"": "last"},
    aliases=bart.ALIASES,
    supported={
        **bart.supported_values(embedded=False, sinusoidal=True),
        "share_encoder_decoder_embeddings": (True,),
    },
    harmless={**bart.HARMLESS, "decoder_vocab_size": "source and target share one vocabulary"},
)
