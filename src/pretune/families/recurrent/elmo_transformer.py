"""ELMo's biLM with Transformer layers (Peters et al., 2018a, arXiv:1802.05365; 2018b, arXiv:1808.08949).

There is no published checkpoint layout; parameter names are pretune's own. Differences from the original: subwords
instead of a character CNN; the output matrix is tied to the token embedding; the backward stack counts positions from
the end of a sequence; attention dropout is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable, Row, own_rows
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import causal
from pretune.nn.blocks import PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class ElmoTransformerConfig:
    """The configuration of ELMo's Transformer biLM: one field per key of config.json."""

    vocab_size: int = 30000
    hidden_size: int = 512  # of each direction; hidden states concatenate two
    num_hidden_layers: int = 6  # of each direction
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    hidden_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-6
    initializer_range: float = 0.02


def build(config: ElmoTransformerConfig) -> BidirectionalBackbone:
    """Build the Transformer ELMo backbone from its configuration."""
    width, dropout = config.hidden_size, config.hidden_dropout_prob
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def layer() -> TransformerLayer:
        attention = SelfAttention(width, config.num_attention_heads, pattern=causal)
        feed_forward = FeedForward(width, config.intermediate_size, ACTIVATIONS[config.hidden_act])
        return TransformerLayer.normalized(PreNorm, norm, dropout, attention=attention, feed_forward=feed_forward)

    embed = Embeddings(
        config.vocab_size, width, positions=SinusoidalPositions(width), scale=width**0.5, dropout=dropout
    )
    ahead, back = (
        TransformerStack(
            embed,
            [layer() for _ in range(config.num_hidden_layers)],
            norm=norm(),
            vocabulary_head=lambda: TiedVocabularyHead(config.vocab_size),
        )
        for _ in range(2)
    )
    return initialize(BidirectionalBackbone(ahead, back), config.initializer_range)


def _rows(stack: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for the layers of one direction.

    `stack` is the module name of that direction.
    """
    layer = f"{stack}.layers.{{i}}"
    attention = ("attention.part.qkv", "attention.part.output", "attention.norm")
    feed_forward = ("feed_forward.part.inner", "feed_forward.part.output", "feed_forward.norm")
    return own_rows(*(f"{layer}.{part}.{{p}}" for part in (*attention, *feed_forward)), f"{stack}.norm.{{p}}")


ELMO_TRANSFORMER = Family(
    name="elmo-transformer",
    config=ElmoTransformerConfig,
    build=build,
    template=Template(single=("start", "A", "end"), pair=("B", "end"), segments=False),
    table=NameTable(
        ("embed.tokens", "backbone.embed.tokens"),
        *_rows("ahead"),
        *_rows("back"),
        ("bilm.bias", "heads.bilm.bias"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "TwoWays"},
    in_transformers=False,
)
