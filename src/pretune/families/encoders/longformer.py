"""Longformer (Beltagy et al., 2020, arXiv:2004.05150): RoBERTa with sliding-window and global attention.

The column `global` marks the tokens with global attention, as in `transformers`: the first token for classification,
the question for question answering, the choice for multiple choice; none for tagging and `mlm`.

Differences from the original: attention dropout is off by default; classifiers have no dropout before their first
linear layer; windows are not dilated, as in the published encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert, roberta
from pretune.families.family import Family, encoder_classes
from pretune.nn.attention.multi_head import GlobalAttention
from pretune.nn.attention.patterns import window
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class LongformerConfig(roberta.RobertaConfig):
    """The configuration of Longformer: RoBERTa's keys and the width of the attention window."""

    max_position_embeddings: int = 512
    attention_window: int | Sequence[int] = 512  # the width of the whole window, for all layers or for each

    def windows(self) -> Sequence[int]:
        """Return, for each layer of Longformer, how many tokens to each side a token attends to."""
        window, layers = self.attention_window, self.num_hidden_layers
        sizes = [window] * layers if isinstance(window, int) else window
        if len(sizes) != layers:
            raise PretuneError(
                f"longformer: attention_window has {len(sizes)} sizes, but num_hidden_layers is {layers}; "
                "correct one of the two keys in config.json"
            )
        if any(size <= 0 or size % 2 for size in sizes):
            raise PretuneError(
                f"longformer: attention_window must be even and positive, not {window}; correct the key in config.json"
            )
        return [size // 2 for size in sizes]


def build(config: LongformerConfig) -> TransformerStack:
    """Build the Longformer backbone from its configuration."""
    attention = partial(GlobalAttention, config.hidden_size, config.num_attention_heads)
    patterns, dropout = map(window, config.windows()), config.attention_probs_dropout_prob
    return roberta.build(config, [bert.layer_of(config, attention(pattern=p, dropout=dropout)) for p in patterns])


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
    classes=encoder_classes("Longformer"),
    supported={**bert.SUPPORTED, "attention_mode": ("longformer", "sliding_chunks")},
    harmless={"ignore_attention_mask": "a leftover of the published code; nothing reads it"},
)
