"""ModernBERT (Warner et al., 2024, arXiv:2412.13663).

Differences from the original: all matrices are initialized with the same standard deviation (in the published models,
that of the output projections is divided by √(2 · layers)); with `zero_outputs`, output projections are initialized to
0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_bounds import check_bounds
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import NameTable, Row, output_rows
from pretune.nn.attention.multi_head import SelfAttention, head_width_of
from pretune.nn.attention.patterns import full, window
from pretune.nn.blocks import PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import RotaryPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, GatedFeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, vocabulary_head
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.parsing import validate_schema
from pretune.text.tokenizers.template import Template

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class ModernBertConfig:
    """The configuration of ModernBERT: one field per key of config.json; newer keys take precedence over older ones."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    classifier_pooling: str = "cls"  # or "mean"
    local_attention: int = 128  # the width of the whole window
    global_attn_every_n_layers: int = 3
    layer_types: Sequence[str] | None = None  # replaces global_attn_every_n_layers
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    rope_parameters: Mapping[str, Any] | None = None  # replaces the two thetas
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    zero_outputs: bool = False  # a key of pretune
    # Written even if None: `transformers` would otherwise assume the ids of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    cls_token_id: int | None = None
    sep_token_id: int | None = None

    def kinds(self) -> Sequence[str]:
        """Return the attention type of each ModernBERT layer: full or sliding-window."""
        layers, every = self.num_hidden_layers, self.global_attn_every_n_layers
        kinds = self.layer_types or [SLIDING if number % every else FULL for number in range(layers)]
        if len(kinds) != layers:
            raise PretuneError(
                f"modernbert: layer_types has {len(kinds)} entries, but num_hidden_layers is {layers}; "
                "correct one of the two keys in config.json"
            )
        if unknown := sorted(set(kinds) - {FULL, SLIDING}):
            raise PretuneError(
                f"modernbert: unknown layer_types {', '.join(unknown)}; {suggest(unknown[0], (FULL, SLIDING))}"
            )
        return kinds

    def theta(self, kind: str) -> float:
        """Return the base of the rotary position embeddings for layers with the attention type `kind`."""
        newer = validate_schema(
            (self.rope_parameters or {}).get(kind) or {}, dict[str, Any], f"modernbert: rope_parameters.{kind}"
        )
        if unknown := sorted(newer.keys() - {"rope_type", "rope_theta"}):
            raise PretuneError(
                f"modernbert: rope_parameters with {', '.join(unknown)} are not supported; use a model "
                "whose rope_parameters have only rope_type and rope_theta"
            )
        if (scaling := newer.get("rope_type", "default")) != "default":
            raise PretuneError(
                f"modernbert: rope_parameters of rope_type {scaling!r} are not supported; use a model "
                "with the rope_type 'default'"
            )
        theta = newer.get("rope_theta", self.global_rope_theta if kind == FULL else self.local_rope_theta)
        check_bounds("rope_theta", validate_schema(theta, float, "modernbert: rope_theta"), "modernbert")
        return float(theta)


def build(config: ModernBertConfig) -> TransformerStack:
    """Build the ModernBERT backbone from its configuration."""
    width, heads = config.hidden_size, config.num_attention_heads
    norm = partial(LayerNorm, width, config.norm_eps, config.norm_bias)
    patterns = {FULL: full, SLIDING: window(config.local_attention // 2)}

    def layer(number: int, kind: str) -> TransformerLayer:
        attention = SelfAttention(
            width,
            heads,
            pattern=patterns[kind],
            rotary=RotaryPositions(head_width_of(width, heads), config.theta(kind)),
            bias=config.attention_bias,
            dropout=config.attention_dropout,
        )
        feed_forward = GatedFeedForward(
            width,
            config.intermediate_size,
            ACTIVATIONS[config.hidden_activation],
            bias=config.mlp_bias,
            dropout=config.mlp_dropout,
        )
        # The embeddings end with a norm, so the first layer has none before its attention.
        before = norm() if number else nn.Identity()
        return TransformerLayer(
            attention=PreNorm(attention, before, config.attention_dropout), feed_forward=PreNorm(feed_forward, norm())
        )

    def transform() -> DenseTransform:
        activation = ACTIVATIONS[config.classifier_activation]
        return initialize(DenseTransform(width, activation, norm(), config.classifier_bias), config.initializer_range)

    def head() -> nn.Module:
        tied, bias = config.tie_word_embeddings, config.decoder_bias
        made = vocabulary_head(config.vocab_size, width, tied=tied, transform=transform(), bias=bias)
        return made if tied else initialize(made, config.initializer_range)

    encoder = TransformerStack(
        embed=Embeddings(config.vocab_size, width, norm=norm(), dropout=config.embedding_dropout),
        layers=[layer(number, kind) for number, kind in enumerate(config.kinds())],
        norm=norm(),
        vocabulary_head=head,
        pooler=transform,
        tagger=transform,
    )
    return initialize(encoder, config.initializer_range, output_scale=0.0 if config.zero_outputs else 1.0)


_LAYER = "model.layers.{i}"
_OURS = "backbone.layers.{i}"


def _head(name: str, transform: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for the task head called `name`.

    `transform` is what pretune calls the head's dense layer.
    """
    return [
        ("head.dense.{p}", f"heads.{name}.{transform}.dense.{{p}}"),
        ("head.norm.{p}", f"heads.{name}.{transform}.norm.{{p}}"),
        ("classifier.{p}", f"heads.{name}.output.{{p}}"),
    ]


MODERNBERT = Family(
    name="modernbert",
    config=ModernBertConfig,
    build=build,
    template=Template(single=("start", "A", "separator"), pair=("B", "separator"), segments=False),
    table=NameTable(
        ("model.embeddings.tok_embeddings.weight", "backbone.embed.tokens"),
        ("model.embeddings.norm.{p}", "backbone.embed.norm.{p}"),
        (f"{_LAYER}.attn_norm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_LAYER}.attn.Wqkv.{{p}}", f"{_OURS}.attention.part.qkv.{{p}}"),
        (f"{_LAYER}.attn.Wo.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
        (f"{_LAYER}.mlp_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        (f"{_LAYER}.mlp.Wi.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_LAYER}.mlp.Wo.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        ("model.final_norm.{p}", "backbone.norm.{p}"),
        ("head.dense.{p}", "heads.mlm.transform.dense.{p}"),
        ("head.norm.{p}", "heads.mlm.transform.norm.{p}"),
        *output_rows("mlm", "decoder.weight", "decoder.bias"),
        *_head("classify", "pooler"),
        *_head("choose", "pooler"),
        *_head("tag", "transform"),
        *_head("answer", "transform"),
        prefix="model.",
        embedding=("model.embeddings.tok_embeddings.weight",),
        output="decoder.weight",
    ),
    classes=encoder_classes("ModernBert"),
    poolings={"cls": "cls", "mean": "mean"},
    supported={
        **ENCODER_VALUES,
        "head_dim": lambda config: (config.hidden_size // config.num_attention_heads,),
        "sliding_window": lambda config: (config.local_attention // 2,),
        "classifier_pooling": ("cls", "mean"),
    },
    harmless={
        "deterministic_flash_attn": "a setting of the backward kernel",
        "layer_norm_eps": "norm_eps is read instead",
        "position_embedding_type": "positions are always rotary",
        "reference_compile": "how a model is run",
        "repad_logits_with_grad": "how a loss is computed",
        "sparse_prediction": "how a loss is computed",
        "sparse_pred_ignore_index": "how a loss is computed",
    },
)
