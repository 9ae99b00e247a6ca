"""Longformer (Beltagy et al., 2020, arXiv:2004.05150): RoBERTa with a window, and tokens that see all and are seen by all.

Which tokens these are, column `global` says: for classification the first one, for answers the question, for multiple choice the
choice, as in `transformers`; for tags and `mlm` none.

Departures: attention dropout is off unless asked for; a classifier has no dropout before its first matrix; windows have no
gaps, as in the published encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pretune.backbones.encoder import Encoder
from pretune.families.encoders import bert, roberta
from pretune.families.family import Family
from pretune.nn.attention.multi_head import GlobalAttention
from pretune.nn.attention.patterns import window
from pretune.nn.blocks import Layer
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class LongformerConfig(roberta.RobertaConfig):
    """Keys of config.json: RoBERTa's and one more."""

    max_position_embeddings: int = 512
    attention_window: int | Sequence[int] = 512  # the whole window, half of it to each side; of all layers, or of each

    def windows(self) -> Sequence[int]:
        """How far the tokens of each layer look to each side."""
        given, layers = self.attention_window, self.num_hidden_layers
        sizes = [given] * layers if isinstance(given, int) else given
        if len(sizes) != layers:
            raise PretuneError(
                f"longformer: attention_window has {len(sizes)} sizes, but num_hidden_layers is {layers}"
            )
        if any(size <= 0 or size % 2 for size in sizes):
            raise PretuneError(f"longformer: attention_window must be even and more than 0, not {given}")
        return [size // 2 for size in sizes]


def layer_of(config: LongformerConfig, size: int) -> Layer:
    """A layer whose tokens look `size` tokens to each side."""
    dropout = config.attention_probs_dropout_prob
    attention = GlobalAttention(config.hidden_size, config.num_attention_heads, pattern=window(size), dropout=dropout)
    return bert.layer_of(config, attention)


def build(config: LongformerConfig) -> Encoder:
    """The whole wiring."""
    return roberta.build(config, [layer_of(config, size) for size in config.windows()])


_SELF = "longformer.encoder.layer.{i}.attention.self"

LONGFORMER = Family(
    name="longformer",
    config=LongformerConfig,
    build=build,
    template=roberta.TEMPLATE,
    table=roberta.table(
        "longformer",
        (
            [f"{_SELF}.{part}_global.{{p}}" for part in ("query", "key", "value")],
            "backbone.layers.{i}.attention.part.global_qkv.{p}",
        ),
    ),
    classes=roberta.classes("Longformer"),
    only={**bert.ONLY, "attention_mode": ("longformer", "sliding_chunks")},
    harmless={"ignore_attention_mask": "of the published code; nothing reads it"},
)
