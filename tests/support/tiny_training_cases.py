"""Tiny versions of the most demanding models and objectives, each trained by the same loop, in one and in several processes.

    python tests/support/tiny_training_cases.py replicate|shard|alone NAME…      prints {"NAME": [loss, …]} as JSON

None of them may need a special case in the core.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from pydoc_data import topics
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.funnel import FunnelStack
from pretune.backbones.recurrent import RecurrentBackbone
from pretune.backbones.recurrent_encoder_decoder import RecurrentEncoderDecoder
from pretune.backbones.recurrent_state import RecurrentState
from pretune.backbones.reversible import ReversibleBackbone
from pretune.backbones.segment_memory import SegmentMemory
from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.decoders.reformer import ReformerConfig
from pretune.families.decoders.reformer import build as build_reformer
from pretune.families.decoders.transfo_xl import TransfoXLConfig
from pretune.families.decoders.transfo_xl import build as build_transfo_xl
from pretune.families.encoder_decoders.recurrent_seq2seq import Seq2SeqConfig
from pretune.families.encoder_decoders.recurrent_seq2seq import build as build_seq2seq
from pretune.families.encoder_decoders.t5 import T5Config
from pretune.families.encoder_decoders.t5 import build as build_t5
from pretune.families.encoders.albert import AlbertConfig
from pretune.families.encoders.albert import build as build_albert
from pretune.families.encoders.bert import BertConfig, build
from pretune.families.encoders.deberta import DebertaV2Config
from pretune.families.encoders.deberta import build_v2 as build_deberta
from pretune.families.encoders.funnel import FunnelConfig
from pretune.families.encoders.funnel import build as build_funnel
from pretune.families.encoders.performer import PerformerConfig
from pretune.families.encoders.performer import build as build_performer
from pretune.families.encoders.xlnet import XLNetConfig
from pretune.families.encoders.xlnet import build as build_xlnet
from pretune.models.model import Network
from pretune.nn.attention.multi_head import CrossAttention, SelfAttention
from pretune.nn.attention.patterns import Pattern, causal, full
from pretune.nn.blocks import PostNorm, PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import RotaryPositions, SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import FeedForward, relu_squared
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear, RMSNorm
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.nn.recurrent import RecurrentCells, RecurrentLayer
from pretune.objectives import Data, Mixture, parse_objective, single_objective
from pretune.objectives.objective import Loss, Objective, classification_loss
from pretune.objectives.pretraining.arrangements import document_span_epoch
from pretune.objectives.pretraining.mlm import MLM
from pretune.packed import Batch
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, train
from pretune.training.parallel.distributed import SHARDS_REVERSIBLE, World
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section

WIDTH, VOCABULARY, LENGTH = 32, 300, 32
TEMPLATE = Template(single=("start", "A", "separator"), pair=("B", "separator"))


@cache
def store() -> Store:
    """Return a store of English text with a small vocabulary."""
    folder = Path(tempfile.mkdtemp())
    texts = [" ".join(text.split()) for _, text in sorted(topics.topics.items())][:8]
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    documents = [Document(text, folder, 1) for text in texts]
    tokenizer = train_tokenizer(documents, "bpe", VOCABULARY, extra_ids=2)
    return build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)


def layer(pattern: Pattern = full, cross: bool = False) -> TransformerLayer:
    """Return a post-norm layer, with cross-attention in decoders."""
    parts: dict[str, nn.Module] = {"attention": PostNorm(SelfAttention(WIDTH, 2, pattern=pattern), LayerNorm(WIDTH))}
    if cross:
        parts["cross"] = PostNorm(CrossAttention(WIDTH, 2), LayerNorm(WIDTH))
    parts["feed_forward"] = PostNorm(FeedForward(WIDTH, 64), LayerNorm(WIDTH))
    return TransformerLayer(**parts)


def head() -> TiedVocabularyHead:
    return TiedVocabularyHead(VOCABULARY)


def embeddings(positions: bool = True) -> Embeddings:
    return Embeddings(VOCABULARY, WIDTH, positions=SinusoidalPositions(WIDTH) if positions else None)


def encoder(layers: int = 2, pattern: Pattern = full) -> TransformerStack:
    """Return a post-norm encoder with sinusoidal positions."""
    made = TransformerStack(
        embeddings(),
        [layer(pattern) for _ in range(layers)],
        vocabulary_head=head,
        pooler=partial(Linear, WIDTH, WIDTH),
    )
    return initialize(made, 0.05)


def bert() -> TransformerStack:
    """Return a tiny BERT."""
    return build(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, initializer_range=0.05,
        )
    )  # fmt: skip


def shared() -> TransformerStack:
    """Return ALBERT: one layer at three depths, narrow embeddings."""
    return build_albert(
        AlbertConfig(
            vocab_size=VOCABULARY, embedding_size=16, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=LENGTH, initializer_range=0.05,
        )
    )  # fmt: skip


def disentangled() -> TransformerStack:
    """Return DeBERTa-v2: relative position embeddings that all layers share, and a convolution."""
    return build_deberta(
        DebertaV2Config(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, initializer_range=0.05, relative_attention=True,
            position_biased_input=False, pos_att_type="c2p|p2c", position_buckets=8, share_att_key=True,
            norm_rel_ebd="layer_norm", conv_kernel_size=3,
        )
    )  # fmt: skip


def modern() -> TransformerStack:
    """Return a pre-norm encoder with rotary positions, QK-norm, ReLU² and zero-initialized outputs."""

    def made() -> TransformerLayer:
        attention = SelfAttention(WIDTH, 2, rotary=RotaryPositions(WIDTH // 2), norm=RMSNorm(WIDTH // 2), bias=False)
        return TransformerLayer(
            attention=PreNorm(attention, RMSNorm(WIDTH)),
            feed_forward=PreNorm(FeedForward(WIDTH, 64, relu_squared, bias=False), RMSNorm(WIDTH)),
        )

    stack = TransformerStack(
        embeddings(positions=False), [made() for _ in range(2)], norm=RMSNorm(WIDTH), vocabulary_head=head,
        pooler=partial(Linear, WIDTH, WIDTH),
    )  # fmt: skip
    return initialize(stack, 0.05, output_scale=0.0)


@dataclass(frozen=True)
class Plain(Objective):
    """Base class of the objectives here: spans of text, any attention pattern."""

    pattern: ClassVar[Pattern | None] = full

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        return document_span_epoch(data, packing, draws)


# -- plm: permutations, two streams in one packed sequence, relative positions, memory ------------------------------


def xl(memory: int) -> TransformerStack:
    """Return XLNet. Stateful batches have no segments, so the segment parameters are unused."""
    config = XLNetConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, n_layer=2, n_head=2, d_inner=64, mem_len=memory, dropout=0.0,
        initializer_range=0.05,
    )  # fmt: skip
    return build_xlnet(config)


def transformer_xl() -> TransformerStack:
    """Return Transformer-XL: memory, and an adaptive softmax tied to adaptive embeddings."""
    config = TransfoXLConfig(
        vocab_size=VOCABULARY, cutoffs=(100, 200), d_model=WIDTH, d_embed=WIDTH, n_head=2, d_head=16, d_inner=64,
        div_val=2, n_layer=2, mem_len=16, same_length=False, dropout=0.0, init_std=0.05,
    )  # fmt: skip
    return build_transfo_xl(config)


# -- attention other than softmax over a pattern; layers that are recomputed in the backward pass, with randomness ---


def reformer() -> ReversibleBackbone:
    """Return Reformer: random rotations for each pack, two streams, axial positions."""
    config = ReformerConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_attention_heads=2, attention_head_size=16, feed_forward_size=64,
        attn_layers=("local", "lsh"), local_attn_chunk_length=4, lsh_attn_chunk_length=8, num_buckets=4, num_hashes=2,
        max_position_embeddings=LENGTH, axial_pos_shape=(4, 8), axial_pos_embds_dim=(8, 24), axial_norm_std=0.05,
        hidden_dropout_prob=0.1, initializer_range=0.05, is_decoder=True,
    )  # fmt: skip
    return build_reformer(config)


def performer() -> TransformerStack:
    """Return Performer: random features, which are buffers of the model."""
    config = PerformerConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, initializer_range=0.05, num_random_features=16,
    )  # fmt: skip
    return build_performer(config)


# -- pooled tokens ---------------------------------------------------------------------------------------------------


def funnel() -> FunnelStack:
    """Return Funnel-Transformer: blocks over fewer and fewer tokens, and a decoder."""
    config = FunnelConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, block_sizes=(1, 1, 1), num_decoder_layers=1, n_head=2, d_head=16,
        d_inner=64, hidden_dropout=0.0,
    )  # fmt: skip
    return build_funnel(config)


# -- spans on an encoder-decoder: two packed streams ----------------------------------------------------------------


def encoder_decoder() -> EncoderDecoder:
    """Return an encoder-decoder with shared embeddings."""
    made = EncoderDecoder(encoder(), embeddings(), [layer(causal, cross=True) for _ in range(2)])
    made.embed.tokens = made.encoder.embed.tokens  # shared embeddings
    return initialize(made, 0.05)


def t5() -> EncoderDecoder:
    """Return T5: a relative position bias that all layers share, outputs scaled before the softmax."""
    config = T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=12, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
    )  # fmt: skip
    return build_t5(config)


@dataclass(frozen=True)
class Spans(Plain):
    """Span corruption with a single span."""

    name: ClassVar[str] = "spans"
    pattern: ClassVar[Pattern | None] = None

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Replace a span of three tokens by a sentinel; the decoder generates sentinel, span, end."""
        sentinel, end = tokenizer.role("sentinel 0"), tokenizer.role("end")
        sources, targets = [], []
        for start, size, i in zip(sequences.offsets[:-1], sequences.lengths, sequences.index, strict=True):
            ids = sequences.ids[start : start + size]
            cut = int(draws.integers(max(1, size - 3), "span", int(i)))
            sources.append(np.r_[ids[:cut], sentinel, ids[cut + 3 :]])
            targets.append(np.r_[sentinel, ids[cut : cut + 3], end])
        inputs = [t[:-1] for t in targets]
        second = Sequences(
            np.concatenate(inputs), np.array([len(t) for t in inputs]), sequences.index, pattern=causal,
        )  # fmt: skip
        second.targets["spans"] = (np.arange(len(second.ids)), np.concatenate([t[1:] for t in targets]))
        return Sequences(np.concatenate(sources), np.array([len(s) for s in sources]), sequences.index, second=second)

    def max_targets(self, packing: Packing) -> dict[str, int]:
        return {"spans": packing.tokens}

    def head(self, backbone: Any) -> nn.Module:
        return backbone.vocabulary_head()

    def loss(self, head: Any, backbone: Any, batch: Batch) -> Loss:
        targets = batch.targets["spans"]
        states = backbone(*batch.packed).last[targets.at]
        return classification_loss("spans", head(states, backbone.embed.tokens), targets)


# -- distillation: a frozen teacher that is not part of the model ---------------------------------------------------


@cache
def teacher() -> Network:
    """Return the frozen teacher."""
    torch.manual_seed(1)
    made = Network(bert(), [("mlm", head())])
    nn.init.normal_(made.heads["mlm"].bias, std=2.0)  # outputs worth imitating
    return made.requires_grad_(False).eval()


@dataclass(frozen=True)
class Distill(MLM):
    """Masked language modeling with the logits of the teacher as targets."""

    name: ClassVar[str] = "distill"

    def loss(self, head: Any, backbone: Any, batch: Batch) -> Loss:
        targets = batch.targets["distill"]
        logits = head(backbone(*batch.packed).last[targets.at], backbone.embed.tokens)
        model = teacher()
        with torch.no_grad():
            wanted = model.heads["mlm"](model.backbone(*batch.packed).last[targets.at], model.backbone.embed.tokens)
        losses = F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), reduction="none", log_target=True).sum(-1)
        return Loss(sums={"distill": (losses * targets.weight).sum()})


# -- recurrent networks ----------------------------------------------------------------------------------------------


def lstm() -> RecurrentBackbone:
    """Return AWD-LSTM with all its kinds of dropout."""
    layers = [RecurrentLayer(RecurrentCells(WIDTH, WIDTH, drop=0.1), dropout=0.1) for _ in range(2)]
    embed = Embeddings(VOCABULARY, WIDTH, word_dropout=0.02)
    made = RecurrentBackbone(embed, layers, dropout=0.1, vocabulary_head=head, pooler=partial(Linear, WIDTH, WIDTH))
    return initialize(made, 0.25)


def two_lstms() -> BidirectionalBackbone:
    """Return the layers of ELMo: a forward and a backward LSTM, each with its own text and state."""
    embed = embeddings(positions=False)
    ways = (
        RecurrentBackbone(
            embed,
            [RecurrentLayer(RecurrentCells(WIDTH, 2 * WIDTH, projection=WIDTH), 0.1, residual=i > 0) for i in range(2)],
            vocabulary_head=head,
        )
        for _ in range(2)
    )
    return initialize(BidirectionalBackbone(*ways), 0.1)


def rnn() -> RecurrentEncoderDecoder:
    """Return a bidirectional recurrent encoder, and a decoder with attention."""
    config = Seq2SeqConfig(
        vocab_size=VOCABULARY, embedding_size=WIDTH, hidden_size=WIDTH, encoder_layers=1, decoder_layers=1,
        bidirectional=True, attention="additive", initializer_range=0.3,
    )  # fmt: skip
    return build_seq2seq(config)


def restore_two_lstms(tensors: dict[str, Any]) -> Any:
    return two_lstms().restore_state(tensors)


# -- bilm: two stacks on one embedding; tlm|mlm: one head for two objectives ----------------------------------------


def bidirectional() -> BidirectionalBackbone:
    """Return a forward and a backward stack with shared embeddings."""
    ahead, back = encoder(pattern=causal), encoder(pattern=causal)
    back.embed = ahead.embed
    return BidirectionalBackbone(ahead, back)


@cache
def pairs() -> LabeledRows:
    """Return sentences paired with their reverse."""
    texts = [store().tokenizer.decode(store().sentence(i)[:9]) for i in range(150)]
    return LabeledRows(Path("pairs"), {}, texts, [" ".join(text.split()[::-1]) for text in texts])


CASES: dict[str, tuple[Any, Mixture, Any]] = {
    "rtd": (encoder, parse_objective("rtd(generator_size=0.5,discriminator_weight=5)"), None),
    "plm with memory": (partial(xl, 8), parse_objective("plm(stateful=true)"), SegmentMemory.from_tensors),
    "lm with memory": (transformer_xl, parse_objective("lm(stateful=true)"), SegmentMemory.from_tensors),
    "spans": (encoder_decoder, single_objective(Spans()), None),
    "spans of t5": (t5, single_objective(Spans()), None),
    "stateful lstm": (lstm, parse_objective("lm(stateful=true)"), RecurrentState.from_tensors),
    "stateful bilm": (two_lstms, parse_objective("bilm(stateful=true)"), restore_two_lstms),
    "translate": (rnn, parse_objective("translate(label_smoothing=0)"), None),
    "mlm+nsp": (bert, parse_objective("mlm+nsp"), None),
    "shared layers": (shared, parse_objective("mlm"), None),
    "distances": (disentangled, parse_objective("mlm"), None),
    "reversible lm": (reformer, parse_objective("lm"), None),
    "pooled tokens": (funnel, parse_objective("mlm"), None),
    "random features": (performer, parse_objective("0.5*mlm|0.5*lm"), None),
    "mlm|lm": (modern, parse_objective("0.5*mlm|0.5*lm"), None),
    "bilm": (bidirectional, parse_objective("bilm"), None),
    "tlm|mlm": (bert, parse_objective("tlm|mlm"), None),
    "distill": (encoder, single_objective(Distill()), None),
}


def make(name: str, steps: int, run: Path | None = None, parallel: str = "ddp", **changes: Any) -> Training:
    """Return a case ready for training."""
    factory, mixture, restore = CASES[name]
    torch.manual_seed(0)
    root = Network(factory())
    for objective in mixture.objectives:
        root.heads[objective.name] = objective.head(root.backbone)
    if "tlm" in root.heads:
        root.heads["tlm"] = root.heads["mlm"]
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents), rows=pairs())
    packing = Packing(tokens=changes.pop("pack", 256), length=LENGTH, fixed=changes.get("compiled", False))
    return Training(
        root=root,
        streams=make_streams(mixture, data, tokens=512, packing=packing, seed=0),
        budget=Budget(steps=steps),
        optimizer=resolve_section(Optimizer, Optimizer(lr=3e-3, max_grad_norm=1.0)),
        schedule=resolve_section(Schedule, Schedule(kind="constant", warmup_ratio=0.0)),
        monitor=resolve_section(Monitoring, Monitoring(log_every=1, save_every=changes.pop("save", 5))),
        run=run,
        world=World.join(torch.device("cpu")),
        parallel=parallel,  # type: ignore[arg-type]
        restore_state=restore,
        **changes,
    )


def losses(name: str, steps: int, parallel: str = "ddp", changed: Any = None, **changes: Any) -> list[float]:
    """Train a case and return the sum of all loss terms at every step; `changed` modifies the training first."""
    with tempfile.TemporaryDirectory() as folder:
        training = make(name, steps, Path(folder), parallel, save=10_000, **changes)
        if parallel == "fsdp":
            training.run = None
            training.monitor = replace(training.monitor, save_every=0)
        if changed is not None:
            changed(training)
        seen: list[float] = []
        from pretune.training import metrics_log

        append = metrics_log.MetricsLog._append

        def keep(self: Any, line: dict[str, float]) -> None:
            append(self, line)
            seen.append(sum(v for k, v in {**self.last, **line}.items() if k in terms))

        terms = {t for s in training.streams.streams for t in s.joint.max_targets(s.packing)}
        metrics_log.MetricsLog._append = keep  # type: ignore[method-assign]
        try:
            train(training)
        finally:
            metrics_log.MetricsLog._append = append  # type: ignore[method-assign]
    return seen


UNSUPPORTED = set() if SHARDS_REVERSIBLE else {("reversible lm", "fsdp")}  # cases that this release of torch fails


def main() -> None:
    parallel, names = sys.argv[1], sys.argv[2:] or [name for name in CASES if (name, sys.argv[1]) not in UNSUPPORTED]
    torch.set_num_threads(1)
    results = {name: losses(name, 12, "ddp" if parallel == "alone" else parallel) for name in names}
    if World.join(torch.device("cpu")).first:
        assert all(math.isfinite(x) for row in results.values() for x in row)
        print(json.dumps(results))


if __name__ == "__main__":
    main()
