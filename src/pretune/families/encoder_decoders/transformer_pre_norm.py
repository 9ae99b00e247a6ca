"""The Transformer with pre-norm layers (Wang et al., 2019, arXiv:1906.01787; Xiong et al., 2020, arXiv:2002.04745).

Layer norm is at the beginning of each residual branch, and once more at the end of encoder and decoder. So gradients
reach the lower layers of deep stacks, and training depends less on warmup. All else is as in `marian`, the post-norm
original.

`transformers` has no such class. Its Marian ignores keys that it does not know, and would compute post-norm layers.
Therefore, pretune writes a `model_type` into config.json that `transformers` refuses to load.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.families.encoder_decoders import bart, marian, mbart
from pretune.nn.blocks import PreNorm
from pretune.nn.linear import LayerNorm


def build(config: marian.MarianConfig) -> EncoderDecoder:
    """Build the backbone of the pre-norm Transformer from its configuration."""
    return bart.assemble(config, PreNorm, partial(LayerNorm, config.d_model), sinusoidal=True)


TRANSFORMER_PRE_NORM = replace(
    marian.MARIAN,
    name="transformer-pre-norm",
    build=build,
    table=bart.table(*mbart.FINAL_NORMS),
    classes={frozenset(): "EncoderDecoder"},
    supported={
        **bart.supported_values(before=True, embedded=False, last=True, sinusoidal=True),
        "share_encoder_decoder_embeddings": (True,),
    },
    in_transformers=False,
)
