"""Recurrent encoder-decoders: seq2seq, RNNsearch, Luong attention, CoVe, and Skip-Thought.

Sutskever et al., 2014 (arXiv:1409.3215); Bahdanau et al., 2015 (arXiv:1409.0473); Luong et al., 2015
(arXiv:1508.04025); McCann et al., 2017 (arXiv:1708.00107); Kiros et al., 2015 (arXiv:1506.06726). There is no published
checkpoint layout; parameter names are pretune's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.families.family import Family
from pretune.families.parameter_names import SEQ2SEQ_OBJECTIVES, NameTable, own_rows
from pretune.nn.attention.recurrent_attention import AttentionRange, Compatibility, RecurrentAttention
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize_uniform
from pretune.nn.output_heads import TiedVocabularyHead, vocabulary_head
from pretune.nn.recurrent import CellKind, RecurrentCells, RecurrentLayer
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The configuration of a recurrent encoder-decoder: one field per key of config.json."""

    vocab_size: int = 160000
    target_vocab_size: int | None = None  # None: source and target share one vocabulary
    embedding_size: int = 1000
    hidden_size: int = 1000
    encoder_layers: int = 4
    decoder_layers: int = 4
    cell: CellKind = "lstm"
    bidirectional: bool = False  # a forward and a backward encoder
    reverse_source: bool = True  # the encoder reads the source in reverse
    vector_at: Literal["first", "every"] = "first"  # the decoder steps that read the sentence vector
    attention: Compatibility | Literal["none"] = "none"
    attention_reach: AttentionRange = "global"
    attention_size: int = 0  # inner width of additive attention; 0: hidden_size
    attention_window: int = 10  # of local attention, to each side
    input_feeding: bool = False  # feed the attention context to the decoder
    maxout_size: int | None = None
    tie_word_embeddings: bool = False  # one embedding for source, target and output layer
    dropout: float = 0.0
    initializer_range: float = 0.08


def build(config: Seq2SeqConfig) -> RecurrentEncoderDecoder:
    """Build the recurrent encoder-decoder backbone from its configuration."""
    width, words = config.hidden_size, config.embedding_size
    target = config.target_vocab_size or config.vocab_size
    encoded = 2 * width if config.bidirectional else width

    def layers(inputs: int, count: int) -> list[RecurrentLayer]:
        widths = [inputs, *[width] * count]
        return [RecurrentLayer(RecurrentCells(a, b, config.cell), config.dropout) for a, b in pairwise(widths)]

    embed = Embeddings(config.vocab_size, words)

    def stack(backward: bool = False) -> RecurrentBackbone:
        own = layers(words, config.encoder_layers)
        return RecurrentBackbone(
            embed, own, dropout=config.dropout, vocabulary_head=partial(TiedVocabularyHead, target), backward=backward
        )

    encoder = BidirectionalBackbone(stack(), stack()) if config.bidirectional else stack(config.reverse_source)
    alignment = None
    if config.attention != "none":
        alignment = RecurrentAttention(
            *(width, encoded, config.attention, config.attention_reach), config.attention_size, config.attention_window
        )
    extra = encoded * ((config.vector_at == "every") + (config.input_feeding and alignment is not None))
    top = config.maxout_size or width
    written = Embeddings(target, words)
    if config.tie_word_embeddings:
        if (target, top) != (config.vocab_size, words):
            raise PretuneError(
                "seq2seq: tie_word_embeddings needs one vocabulary, and hidden states as wide as the embeddings; set tie_word_embeddings to false in config.json"
            )
        written.tokens = embed.tokens
    backbone = RecurrentEncoderDecoder(
        encoder,
        written,
        layers(words + extra, config.decoder_layers),
        alignment=alignment,
        every=config.vector_at == "every",
        feed=config.input_feeding and alignment is not None,
        readout=config.maxout_size,
        dropout=config.dropout,
        vocabulary_head=partial(vocabulary_head, target, top, tied=config.tie_word_embeddings),
    )
    return initialize_uniform(backbone, config.initializer_range, embeddings_only=False)


SEQ2SEQ = Family(
    name="seq2seq",
    config=Seq2SeqConfig,
    build=build,
    template=Template(single=("A", "end"), pair=("B", "end"), segments=False, target=("start", "A", "end")),
    table=NameTable(
        *own_rows(
            *("encoder.embed.tokens", "embed.tokens", "encoder.layers.{i}.cells.{p}", "layers.{i}.cells.{p}"),
            *(f"encoder.{way}.layers.{{i}}.cells.{{p}}" for way in ("ahead", "back")),
            *("top.bridge.{p}", "top.alignment.{p}", "top.readout.0.{p}", "top.readout.both.{p}"),
            *(f"top.alignment.{part}.{{p}}" for part in ("query", "key", "place")),
        ),
        *((f"{name}.bias", f"heads.{name}.bias") for name in SEQ2SEQ_OBJECTIVES),
        *((f"{name}.output.{{p}}", f"heads.{name}.output.{{p}}") for name in SEQ2SEQ_OBJECTIVES),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "RecurrentEncoderDecoder"},
    poolings={"": "last"},
    in_transformers=False,
)
