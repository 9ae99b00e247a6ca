"""BERT (Devlin et al., 2019, arXiv:1810.04805).

Differences from the original: attention dropout is off by default (the fast attention kernels have none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES
from pretune.families.family import Family, SupportedValues, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, Row, output_rows, pooled_heads
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.blocks import PostNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.embedding.token_embedding import ColumnEmbedding, Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, Activation, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.output_heads import DenseTransform, vocabulary_head
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class BertConfig:
    """The configuration of BERT: one field per key of config.json."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True  # the output matrix is the token embedding


def post_norm_layer(
    attention: nn.Module, width: int, inner: int, activation: Activation, eps: float, dropout: float
) -> TransformerLayer:
    """Build a post-norm Transformer layer, as in BERT; `inner` is the feed-forward width."""
    feed_forward, norm = FeedForward(width, inner, activation), partial(LayerNorm, width, eps)
    return TransformerLayer.normalized(PostNorm, norm, dropout, attention=attention, feed_forward=feed_forward)


def layer_of(config: BertConfig, attention: nn.Module | None = None) -> TransformerLayer:
    """Build a post-norm layer from a configuration with BERT's keys; `attention` defaults to BERT's self-attention."""
    width, dropout = config.hidden_size, config.attention_probs_dropout_prob
    return post_norm_layer(
        SelfAttention(width, config.num_attention_heads, dropout=dropout) if attention is None else attention,
        width,
        config.intermediate_size,
        ACTIVATIONS[config.hidden_act],
        config.layer_norm_eps,
        config.hidden_dropout_prob,
    )


def embeddings_of(
    config: BertConfig,
    width: int,
    project: Linear | None = None,
    columns: Iterable[ColumnEmbedding] = (),
    first: int | None = 0,
    scale: float = 1.0,
    padding: int | None = None,
) -> Embeddings:
    """Build the embeddings, `width` wide, from a configuration with BERT's keys.

    `project` maps them to the width of the layers; `columns` embed additional features of tokens; `first` is the row of
    the first position in the table (RoBERTa), or None for no positions; `scale` multiplies token embeddings; tokens
    with the id `padding` do not count as positions (MPNet).
    """
    if first is not None and config.max_position_embeddings <= first:
        raise PretuneError(
            f"max_position_embeddings is {config.max_position_embeddings}, but the first {first} rows are not used as positions; "
            f"in config.json, set it to more than {first}"
        )
    positions = None if first is None else LearnedPositions(config.max_position_embeddings - first, width, first)
    return Embeddings(
        config.vocab_size,
        width,
        positions=positions,
        segments=config.type_vocab_size,
        columns=columns,
        scale=scale,
        norm=LayerNorm(width, config.layer_norm_eps),
        dropout=config.hidden_dropout_prob,
        project=project,
        padding=padding,
    )


def vocabulary_head_of(config: BertConfig, activation: Activation, vectors: int) -> nn.Module:
    """Build the masked-LM head from a configuration with BERT's keys; `vectors` is the width of token embeddings."""
    transform = DenseTransform(
        config.hidden_size, activation, LayerNorm(vectors, config.layer_norm_eps), outputs=vectors
    )
    head = vocabulary_head(config.vocab_size, vectors, tied=config.tie_word_embeddings, transform=transform)
    return initialize(head, config.initializer_range)


def pooler_of(config: BertConfig, activation: str = "tanh") -> Callable[[], nn.Module]:
    """Return a function that creates a pooler, one dense layer, from a configuration with BERT's keys."""
    return lambda: initialize(DenseTransform(config.hidden_size, ACTIVATIONS[activation]), config.initializer_range)


def encoder_of(
    config: BertConfig,
    *,
    embed: Embeddings | None = None,
    layers: Iterable[nn.Module] | None = None,
    head_activation: str = "",
    pooler_activation: str = "tanh",
    **options: Any,
) -> TransformerStack:
    """Build and initialize an encoder from a configuration with BERT's keys.

    `embed` and `layers` default to BERT's; `head_activation` and `pooler_activation` are the activations in the
    masked-LM head and in the pooler.
    """
    embed = embeddings_of(config, config.hidden_size) if embed is None else embed
    activation, vectors = ACTIVATIONS[head_activation or config.hidden_act], embed.tokens.shape[1]
    encoder = TransformerStack(
        embed,
        [layer_of(config) for _ in range(config.num_hidden_layers)] if layers is None else layers,
        vocabulary_head=lambda: vocabulary_head_of(config, activation, vectors),
        pooler=pooler_of(config, pooler_activation),
        **options,
    )
    return initialize(encoder, config.initializer_range)


def build(config: BertConfig, columns: Iterable[ColumnEmbedding] = ()) -> TransformerStack:
    """Build the BERT backbone from its configuration; `columns` embed additional token features (ERNIE)."""
    return encoder_of(config, embed=embeddings_of(config, config.hidden_size, columns=columns))


def encoder_rows(name: str, positions: bool = True) -> list[Row]:
    """Return pairs of published and pretune parameter names for BERT's embeddings and layers.

    `name` is the prefix of the published names, such as bert; `positions` tells whether there are position embeddings.
    """
    published, ours = f"{name}.encoder.layer.{{i}}", "backbone.layers.{i}"
    absolute: Row = (f"{name}.embeddings.position_embeddings.weight", "backbone.embed.positions.weight")
    return [
        (f"{name}.embeddings.word_embeddings.weight", "backbone.embed.tokens"),
        *([absolute] if positions else []),
        (f"{name}.embeddings.token_type_embeddings.weight", "backbone.embed.segments"),
        (f"{name}.embeddings.LayerNorm.{{p}}", "backbone.embed.norm.{p}"),
        (
            [f"{published}.attention.self.{part}.{{p}}" for part in ("query", "key", "value")],
            f"{ours}.attention.part.qkv.{{p}}",
        ),
        (f"{published}.attention.output.dense.{{p}}", f"{ours}.attention.part.output.{{p}}"),
        (f"{published}.attention.output.LayerNorm.{{p}}", f"{ours}.attention.norm.{{p}}"),
        (f"{published}.intermediate.dense.{{p}}", f"{ours}.feed_forward.part.inner.{{p}}"),
        (f"{published}.output.dense.{{p}}", f"{ours}.feed_forward.part.output.{{p}}"),
        (f"{published}.output.LayerNorm.{{p}}", f"{ours}.feed_forward.norm.{{p}}"),
    ]


# The masked-LM head. Its bias has two names; the second one is used if the output matrix is untied.
MLM_OUTPUT = "cls.predictions.decoder.weight"
MLM_COPIED = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
MLM_ROWS: list[Row] = [
    ("cls.predictions.transform.dense.{p}", "heads.mlm.transform.dense.{p}"),
    ("cls.predictions.transform.LayerNorm.{p}", "heads.mlm.transform.norm.{p}"),
    *output_rows("mlm", MLM_OUTPUT, "cls.predictions.bias", "cls.predictions.decoder.bias"),
]


def unused(name: str) -> dict[str, str]:
    """Return the tensors of BERT checkpoints that do not affect the output, with reasons; `name` is their prefix."""
    return {
        f"{name}.embeddings.position_ids": "the numbers 0, 1, 2 …",
        f"{name}.embeddings.token_type_ids": "zeros, the default segment ids",
    }


def table(
    name: str,
    *rows: Row,
    positions: bool = True,
    more_unused: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> NameTable:
    """Return the table of published and pretune parameter names of a BERT-like family.

    Published names begin with `name`; `rows` are pairs of names besides BERT's, `more_unused` and `renamed` are further
    unused tensors and outdated names (see `NameTable`). `positions` tells whether there are position embeddings.
    """
    return NameTable(
        *encoder_rows(name, positions),
        *rows,
        *MLM_ROWS,
        (f"{name}.pooler.dense.{{p}}", "heads.nsp.pooler.dense.{p}"),
        ("cls.seq_relationship.{p}", "heads.nsp.output.{p}"),
        *pooled_heads(f"{name}.pooler.dense.{{p}}", "classifier.{p}"),
        *TOKEN_HEADS,
        prefix=f"{name}.",
        embedding=(f"{name}.embeddings.word_embeddings.weight",),
        output=MLM_OUTPUT,
        copied=MLM_COPIED,
        unused={**unused(name), **(more_unused or {})},
        renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias", **(renamed or {})},
    )


def classes(name: str) -> Mapping[frozenset[str], str]:
    """Return a mapping from sets of task heads to `transformers` classes, for a BERT-like family.

    The names of the classes begin with `name`, such as Bert.
    """
    return {
        **encoder_classes(name),
        frozenset({"nsp"}): f"{name}ForNextSentencePrediction",
        frozenset({"mlm", "nsp"}): f"{name}ForPreTraining",
    }


def other_classes(name: str) -> Mapping[str, frozenset[str]]:
    """Map BERT's causal class in `transformers`, which pretune reads but does not write, to its task heads.

    The name of the class begins with `name`, such as Bert.
    """
    return {f"{name}LMHeadModel": frozenset({"mlm"})}  # a decoder in `transformers`, read as an encoder here


# The supported values of config.json keys that BERT shares with its descendants.
SUPPORTED: Mapping[str, SupportedValues] = {
    **ENCODER_VALUES,
    "position_embedding_type": ("absolute",),
    **dict.fromkeys(("embedding_size", "emb_size"), lambda config: (config.hidden_size,)),
}

BERT = Family(
    name="bert",
    config=BertConfig,
    build=build,
    template=Template(single=("start", "A", "separator"), pair=("B", "separator")),
    table=table("bert"),
    classes=classes("Bert"),
    other_classes=other_classes("Bert"),
    supported=SUPPORTED,
)
