"""XLM (Lample and Conneau, 2019, arXiv:1901.07291).

Differences from the original: attention dropout is off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.config_keys import ENCODER_VALUES, summary_values
from pretune.families.encoders.bert import post_norm_layer
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, output_rows
from pretune.nn.attention.multi_head import SelfAttention
from pretune.nn.attention.patterns import causal, full
from pretune.nn.blocks import TransformerLayer
from pretune.nn.embedding.positional_encoding import LearnedPositions
from pretune.nn.embedding.token_embedding import ColumnEmbedding, Embeddings
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear, OutputLinear
from pretune.nn.output_heads import vocabulary_head
from pretune.text.tokenizers.template import Template

# A head of XLM and XLNet that pretune does not have: its class, its keys in config.json, and its tensors.
BEAM_CLASS = "a question-answering head with beam search over start and end positions"
BEAM_KEYS = dict.fromkeys(
    ("start_n_top", "end_n_top"), "only for the question-answering head with beam search, which is not supported"
)


def beam_head(prefix: str = "") -> dict[str, str]:
    """Return a mapping from the parameter names of the beam-search head of XLM and XLNet to a description of the head.

    The head is for question answering, and pretune does not support it. The names begin with `prefix`.
    """
    ends = ("dense_{i}.{p}", "LayerNorm.{p}")
    names = ("start_logits.dense.{p}", *(f"end_logits.{end}" for end in ends), "answer_class.dense_{i}.{p}")
    return {f"{prefix}{name}": "the question-answering head with beam search" for name in names}


# Width between the pooled state and the score of a choice: the number of classes in `transformers`, by default two.
SUMMARY_WIDTH = 2


@dataclass(frozen=True)
class XlmConfig:
    """The configuration of XLM: one field per key of config.json."""

    vocab_size: int = 30145
    emb_dim: int = 2048
    n_layers: int = 12
    n_heads: int = 16
    dropout: float = 0.1
    attention_dropout: float = 0.0
    gelu_activation: bool = True
    sinusoidal_embeddings: bool = False
    causal: bool = False
    n_langs: int = 1
    use_lang_emb: bool = True
    lang2id: Mapping[str, int] | None = None  # the language ids in the column `language`
    id2lang: Mapping[str, str] | None = None
    max_position_embeddings: int = 512
    embed_init_std: float = 2048**-0.5
    init_std: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 2
    tie_word_embeddings: bool = True


def build(config: XlmConfig) -> TransformerStack:
    """Build the XLM backbone from its configuration; batches without language ids get no language embedding."""
    width, eps = config.emb_dim, config.layer_norm_eps
    activation = ACTIVATIONS["gelu" if config.gelu_activation else "relu"]

    def layer() -> TransformerLayer:
        pattern = causal if config.causal else full
        attention = SelfAttention(width, config.n_heads, pattern=pattern, dropout=config.attention_dropout)
        return post_norm_layer(attention, width, 4 * width, activation, eps, config.dropout)

    positions = LearnedPositions(config.max_position_embeddings, width)
    languages = config.n_langs if config.use_lang_emb and config.n_langs > 1 else 0
    encoder = TransformerStack(
        embed=Embeddings(
            config.vocab_size,
            width,
            positions=positions,
            columns=[ColumnEmbedding("language", languages, width, absent=None)] if languages else (),
            norm=LayerNorm(width, eps),
            dropout=config.dropout,
        ),
        layers=[layer() for _ in range(config.n_layers)],
        vocabulary_head=lambda: initialize(
            vocabulary_head(config.vocab_size, width, tied=config.tie_word_embeddings), config.embed_init_std
        ),
        choice_pooler=lambda: initialize(Linear(width, SUMMARY_WIDTH), config.init_std),
        choice_output=lambda outputs: initialize(OutputLinear(SUMMARY_WIDTH, outputs), config.init_std),
    )
    initialize(encoder, config.init_std)
    initialize(encoder.embed, config.embed_init_std)
    if config.sinusoidal_embeddings:
        positions.freeze_sinusoidal()
    return encoder


_ATTENTION, _FEED_FORWARD = "transformer.attentions.{i}", "transformer.ffns.{i}"
_OURS = "backbone.layers.{i}"

XLM = Family(
    name="xlm",
    config=XlmConfig,
    build=build,
    template=Template(single=("start", "A", "separator"), pair=("B", "separator"), segments=False),
    table=NameTable(
        ("transformer.embeddings.weight", "backbone.embed.tokens"),
        ("transformer.position_embeddings.weight", "backbone.embed.positions.weight"),
        ("transformer.lang_embeddings.weight", "backbone.embed.columns.language.weight"),
        ("transformer.layer_norm_emb.{p}", "backbone.embed.norm.{p}"),
        ([f"{_ATTENTION}.{part}_lin.{{p}}" for part in ("q", "k", "v")], f"{_OURS}.attention.part.qkv.{{p}}"),
        (f"{_ATTENTION}.out_lin.{{p}}", f"{_OURS}.attention.part.output.{{p}}"),
        ("transformer.layer_norm1.{i}.{p}", f"{_OURS}.attention.norm.{{p}}"),
        (f"{_FEED_FORWARD}.lin1.{{p}}", f"{_OURS}.feed_forward.part.inner.{{p}}"),
        (f"{_FEED_FORWARD}.lin2.{{p}}", f"{_OURS}.feed_forward.part.output.{{p}}"),
        ("transformer.layer_norm2.{i}.{p}", f"{_OURS}.feed_forward.norm.{{p}}"),
        *output_rows("mlm", "pred_layer.proj.weight", "pred_layer.proj.bias"),
        ("sequence_summary.summary.{p}", "heads.classify.output.{p}"),
        ("sequence_summary.summary.{p}", "heads.choose.pooler.{p}"),
        ("logits_proj.{p}", "heads.choose.output.{p}"),
        *TOKEN_HEADS,
        prefix="transformer.",
        embedding=("transformer.embeddings.weight",),
        output="pred_layer.proj.weight",
        unused={"transformer.position_ids": "the numbers 0, 1, 2 …"},
        unsupported=beam_head("qa_outputs."),
    ),
    classes={**encoder_classes("XLM", "QuestionAnsweringSimple"), frozenset({"mlm"}): "XLMWithLMHeadModel"},
    unsupported_classes={"XLMForQuestionAnswering": BEAM_CLASS},
    aliases={
        "n_words": "vocab_size",
        "pad_index": "pad_token_id",
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    supported={
        **ENCODER_VALUES,
        "is_encoder": (True,),
        "asm": (False,),  # adaptive softmax
        "share_inout_emb": (True,),
        # The only supported inputs of the heads for classification and multiple choice.
        **summary_values("first", activation="", to_labels=True),
    },
    harmless={
        **dict.fromkeys(("bos_index", "eos_index", "unk_index", "mask_index"), "also in the tokenizer's files"),
        **dict.fromkeys(("asm_cutoffs", "asm_div_value"), "only for the adaptive softmax, which is not supported"),
        **BEAM_KEYS,
        **dict.fromkeys(("encoder_only", "max_vocab", "min_count", "same_enc_dec"), "how it was trained"),
        "lang_id": "the target language of `generate` in `transformers`",
    },
)
