"""Reformer (Kitaev et al., 2020, arXiv:2001.04451): a causal model with local and LSH attention and reversible layers.

Differences from the original: attention dropout is off; the sum of token and position embeddings has one dropout; LSH
rotations are drawn at each training step, and are fixed in evaluation, unless `hash_seed` is set. Each sequence is
divided into chunks on its own: `transformers` pads to the longest sequence of the batch, which changes what the first
chunk of a shorter sequence sees. Version 5.22 of `transformers` stores the bias of the head but does not add it;
version 4 and pretune add it. Where fewer preceding chunks exist than a chunk may attend to, it attends to each of
them once; `transformers` wraps around and attends to some of them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from pretune.backbones.reversible import ReversibleBackbone
from pretune.families.config_keys import DECODER_VALUES
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.nn.attention.chunked import ChunkedAttention
from pretune.nn.attention.lsh import LSHAttention
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import causal
from pretune.nn.dropout import Dropout, Noise
from pretune.nn.embedding.positional_encoding import AxialPositions, LearnedPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import UntiedVocabularyHead
from pretune.nn.reversible import ReversibleBranch, ReversibleLayer
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template

LOCAL, LSH = "local", "lsh"


@dataclass(frozen=True)
class ReformerConfig:
    """The configuration of Reformer: one field per key of config.json."""

    vocab_size: int = 320
    hidden_size: int = 256  # of each residual stream; hidden states concatenate two
    num_attention_heads: int = 12
    attention_head_size: int = 64
    feed_forward_size: int = 512
    hidden_act: str = "relu"
    attn_layers: Sequence[str] = (LOCAL, LSH, LOCAL, LSH, LOCAL, LSH)
    local_attn_chunk_length: int = 64
    local_num_chunks_before: int = 1
    local_num_chunks_after: int = 0
    lsh_attn_chunk_length: int = 64
    lsh_num_chunks_before: int = 1
    lsh_num_chunks_after: int = 0
    num_hashes: int = 1
    num_buckets: int | Sequence[int] | None = None  # None: chosen for the longest sequences
    hash_seed: int | None = None
    chunk_size_feed_forward: int = 0  # tokens per chunk; 0: all at once
    max_position_embeddings: int = 4096
    axial_pos_embds: bool = True
    axial_pos_shape: Sequence[int] = (64, 64)
    axial_pos_embds_dim: Sequence[int] = (64, 192)
    axial_norm_std: float = 1.0
    hidden_dropout_prob: float = 0.05
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    is_decoder: bool = False
    tie_word_embeddings: bool = False
    pad_token_id: int = 0
    # Written even if None: `transformers` would otherwise assume the ids of the published vocabulary.
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def buckets(self) -> Sequence[int]:
        """Return the number of buckets of LSH attention, as one or two factors.

        >>> ReformerConfig().buckets()
        [128]
        """
        if self.num_buckets is not None:
            return [self.num_buckets] if isinstance(self.num_buckets, int) else self.num_buckets
        # A power of two, about twice the number of chunks; two factors keep the rotation matrix small.
        chunks = self.max_position_embeddings // self.lsh_attn_chunk_length
        power = (2 * chunks).bit_length() - 1
        if 2**power > 2 * max(int(chunks**0.5), self.lsh_attn_chunk_length):
            return [2 ** (power // 2), 2 ** (power - power // 2)]
        return [2**power]


def build(config: ReformerConfig) -> ReversibleBackbone:
    """Build the Reformer backbone from its configuration."""
    check(config)
    width, heads, head_width = config.hidden_size, config.num_attention_heads, config.attention_head_size
    dropout = config.hidden_dropout_prob
    norm = partial(LayerNorm, width, config.layer_norm_eps)

    def attention(kind: str) -> nn.Module:
        if kind == LOCAL:
            local = ChunkedAttention(config.local_attn_chunk_length, config.local_num_chunks_before)
            return SelfAttention(width, heads, head_width=head_width, pattern=causal, bias=False, attend=local)
        return LSHAttention(
            width,
            heads,
            head_width=head_width,
            size=config.lsh_attn_chunk_length,
            before=config.lsh_num_chunks_before,
            buckets=config.buckets(),
            rounds=config.num_hashes,
            pattern=causal,
            rotations=Noise(config.hash_seed),
        )

    def layer(kind: str) -> ReversibleLayer:
        activation = ACTIVATIONS[config.hidden_act]
        feed_forward = FeedForward(width, config.feed_forward_size, activation, dropout=dropout)
        return ReversibleLayer(
            attention=ReversibleBranch(attention(kind), norm(), dropout),
            feed_forward=ReversibleBranch(feed_forward, norm(), dropout, chunk_size=config.chunk_size_feed_forward),
        )

    axial = config.axial_pos_embds
    positions = (
        AxialPositions(config.axial_pos_shape, config.axial_pos_embds_dim)
        if axial
        else LearnedPositions(config.max_position_embeddings, width)
    )
    stack = ReversibleBackbone(
        embed=Embeddings(config.vocab_size, width, positions=positions, dropout=dropout),
        layers=[layer(kind) for kind in config.attn_layers],
        norm=nn.Sequential(LayerNorm(2 * width, config.layer_norm_eps), Dropout(dropout)),
        vocabulary_head=lambda: initialize(
            UntiedVocabularyHead(config.vocab_size, 2 * width, bias=True), config.initializer_range
        ),
        pooler=nn.Identity,
    )
    initialize(stack, config.initializer_range)
    for weight in positions.parameters() if axial else ():
        nn.init.normal_(weight, std=config.axial_norm_std)
    return stack


def check(config: ReformerConfig) -> None:
    """Raise an error if settings of a Reformer configuration contradict each other."""
    unknown = sorted(set(config.attn_layers) - {LOCAL, LSH})
    if unknown or not config.attn_layers:
        raise PretuneError(
            f"reformer: attn_layers must list {LOCAL} and {LSH} layers, but contains {', '.join(unknown) or 'no layer'}; "
            "correct the key in config.json"
        )
    if {LOCAL, LSH} <= set(config.attn_layers) and config.lsh_attn_chunk_length % config.local_attn_chunk_length:
        raise PretuneError(
            f"reformer: lsh_attn_chunk_length {config.lsh_attn_chunk_length} must be a multiple of "
            f"local_attn_chunk_length, {config.local_attn_chunk_length}; correct one of the two keys in config.json"
        )
    if LSH in config.attn_layers and (odd := [count for count in config.buckets() if count % 2]):
        raise PretuneError(
            f"reformer: num_buckets {odd[0]} is odd; in config.json, give an even number, as buckets are pairs of opposite directions"
        )
    if config.axial_pos_embds and len(config.axial_pos_embds_dim) != len(config.axial_pos_shape):
        raise PretuneError(
            f"reformer: axial_pos_embds_dim has {len(config.axial_pos_embds_dim)} axes, but axial_pos_shape has "
            f"{len(config.axial_pos_shape)}; in config.json, give both keys the same number of entries"
        )
    if config.axial_pos_embds and sum(config.axial_pos_embds_dim) != config.hidden_size:
        raise PretuneError(
            f"reformer: axial_pos_embds_dim {list(config.axial_pos_embds_dim)} must sum to hidden_size, "
            f"{config.hidden_size}; correct one of the two keys in config.json"
        )


_EMBEDDINGS, _LAYER, _OURS = "reformer.embeddings", "reformer.encoder.layers.{i}", "backbone.layers.{i}"
_SELF = f"{_LAYER}.attention.self_attention"

REFORMER = Family(
    name="reformer",
    config=ReformerConfig,
    build=build,
    template=Template(single=("A",), pair=("separator", "B"), segments=False, document=("A", "end")),
    table=NameTable(
        (f"{_EMBEDDINGS}.word_embeddings.weight", "backbone.embed.tokens"),
        (f"{_EMBEDDINGS}.position_embeddings.weights.{{i}}", "backbone.embed.positions.weights.{i}"),
        (f"{_EMBEDDINGS}.position_embeddings.embedding.weight", "backbone.embed.positions.weight"),
        (f"{_LAYER}.attention.layer_norm.{{p}}", f"{_OURS}.attention.norm.{{p}}"),
        ([f"{_SELF}.{part}.weight" for part in ("query", "key", "value")], f"{_OURS}.attention.part.qkv.weight"),
        ([f"{_SELF}.{part}.weight" for part in ("query_key", "value")], f"{_OURS}.attention.part.key_value.weight"),
        (f"{_LAYER}.attention.output.dense.weight", f"{_OURS}.attention.part.output.weight"),
        (f"{_LAYER}.feed_forward.layer_norm.{{p}}", f"{_OURS}.feed_forward.norm.{{p}}"),
        (f"{_LAYER}.feed_forward.dense.dense.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_LAYER}.feed_forward.output.dense.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        ("reformer.encoder.layer_norm.{p}", "backbone.norm.0.{p}"),
        ("lm_head.decoder.weight", "heads.lm.output.weight"),
        ("lm_head.bias", "heads.lm.output.bias"),
        prefix="reformer.",
        unused=dict.fromkeys(
            (f"{_SELF}.mask_value_{{p}}", f"{_SELF}.self_mask_value_{{p}}"), "the constant for masked logits"
        ),
        # These heads read the first token, which carries no information in a causal model.
        unsupported={
            "classifier.dense.{p}": "the classification head",
            "classifier.out_proj.{p}": "the classification head",
            "qa_outputs.{p}": "the head for questions",
        },
        renamed={"lm_head.decoder.bias": "lm_head.bias"},
    ),
    classes={frozenset(): "ReformerModel", frozenset({"lm"}): "ReformerModelWithLMHead"},
    poolings={"": "last"},
    # The values of the released models.
    supported={
        **DECODER_VALUES,
        "is_decoder": (True,),
        "local_num_chunks_after": (0,),
        "lsh_num_chunks_after": (0,),
        "tie_word_embeddings": (False,),
        "sinusoidal_pos_embds": (False,),
        "num_hidden_layers": lambda config: (len(config.attn_layers),),
    },
    harmless={
        "chunk_size_lm_head": "the number of tokens per chunk",
        "local_attention_probs_dropout_prob": "attention dropout, which is off",
        "lsh_attention_probs_dropout_prob": "attention dropout, which is off",
        "attention_probs_dropout_prob": "attention dropout, which is off",
        "intermediate_size": "feed_forward_size is read instead",
    },
)
