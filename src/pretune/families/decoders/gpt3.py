"""GPT-3 (Brown et al., 2020, arXiv:2005.14165): GPT-2 whose layers alternate between dense and locally banded attention.

The paper does not give the width of the band. As in GPT-Neo, a replication of GPT-3, a query of a banded layer attends
to 256 tokens: itself and the 255 before. Differences from the paper: bands consist of tokens, not of blocks; attention
dropout is off by default.

`transformers` has no such class. Its GPT-2 ignores keys that it does not know, and would compute dense attention in all
layers. Therefore, pretune writes a `model_type` into config.json that `transformers` refuses to load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.decoders import gpt2
from pretune.nn.attention.patterns import causal, window


@dataclass(frozen=True)
class GPT3Config(gpt2.GPT2Config):
    """The configuration of GPT-3: GPT-2's keys, and the width of the attention band of every second layer."""

    n_positions: int = 2048
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    window_size: int = 256  # the number of tokens that a query of a banded layer attends to, including its own


def build(config: GPT3Config) -> TransformerStack:
    """Build the GPT-3 backbone from its configuration; the first layer is dense, the second banded, and so on."""
    return gpt2.build(config, (causal, causal & window(config.window_size - 1)))


GPT3 = replace(
    gpt2.GPT2, name="gpt3", config=GPT3Config, build=build, classes={frozenset(): "Decoder"}, in_transformers=False
)
