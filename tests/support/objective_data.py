"""Data and models for tests of objectives: small stores of real text with every kind of tokenizer, small networks, tasks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pretune as pt
from pretune.backbones.bidirectional import BidirectionalBackbone
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.attention.multi_head import CrossAttention, SelfAttention
from pretune.nn.attention.patterns import Pattern, causal, full
from pretune.nn.blocks import PreNorm, TransformerLayer
from pretune.nn.embedding.positional_encoding import SinusoidalPositions
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.feed_forward import FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm, Linear
from pretune.nn.output_heads import TiedVocabularyHead
from pretune.objectives import Data
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.training import Kind, train_on_documents
from pretune.training.run_folder import Run
from tests.support.texts import KOREAN, RUSSIAN, english_documents

KINDS: list[Kind] = [
    "wordpiece",
    "bpe",
    "byte-level-bpe",
    "unigram",
    "sentencepiece-bpe",
    "sentencepiece-unigram",
    "items",
]
TEMPLATE = Template(single=("start", "A", "separator"), pair=("B", "separator"))


SENTINELS = 40
# Templates of source and target texts, like those of BERT, T5 and BART.
TEMPLATES = {
    "bert": TEMPLATE,
    "t5": Template(single=("A", "end"), pair=("B", "end"), target=("padding", "A", "end")),
    "bart": Template(single=("start", "A", "end"), pair=("separator", "B", "end"), target=("end", "start", "A", "end")),
}


def store(kind: Kind = "wordpiece", sentinels: int = 0) -> Store:
    """Return a small store of English, Russian and Korean text, made once per tokenizer."""
    return _store(kind, sentinels)


@cache
def _store(kind: Kind, sentinels: int) -> Store:
    folder = Path(tempfile.mkdtemp())
    texts = [" ".join(t.split()) for t in english_documents()[:12]] + RUSSIAN + KOREAN
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train_on_documents(
        [Document(t, folder, 1) for t in texts * 2], kind, 900 + sentinels, extra_ids=sentinels
    )
    return build_store(
        [folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line", shard_bytes=9000), 1
    )


def rows(count: int = 60) -> LabeledRows:
    """Return pairs of sentences from the same text, some of them empty."""
    sentences = [s.strip() for text in english_documents()[:9] for s in text.split(". ")][: 2 * count]
    return LabeledRows(Path("rows"), {}, sentences[::2], [s[: 7 * (i % 9)] for i, s in enumerate(sentences[1::2])])


def parallel(count: int = 60) -> LabeledRows:
    """Return the same pairs for two language pairs, three times as many for the first."""
    made = rows(count)
    made.labels = ["en ru" if i % 4 else "de en" for i in range(len(made))]
    return made


def dialogues(count: int = 40) -> Dialogues:
    """Return dialogues of one to eight turns, some of them empty."""
    texts = [s.strip() for text in english_documents()[:9] for s in text.split(". ")]
    made = Dialogues(Path("dialogues"), counts=[1 + 3 * i % 8 for i in range(count)])
    made.texts = [texts[i % len(texts)] if i % 11 else "" for i in range(sum(made.counts))]
    made.roles = [int(i * 7 % 5 > 2) for i in range(sum(made.counts))]
    return made


def data(kind: Kind = "wordpiece", sentinels: int = 0, template: str = "bert") -> Data:
    """Return the data of an objective: a store, all its documents, and pairs of sentences."""
    made = store(kind, sentinels)
    return Data(made.tokenizer, TEMPLATES[template], store=made, documents=np.arange(made.documents), rows=rows())


def stack(vocabulary: int, width: int = 32, layers: int = 2) -> TransformerStack:
    """Return a small pre-norm encoder."""
    torch.manual_seed(0)
    made = TransformerStack(
        Embeddings(vocabulary, width, positions=SinusoidalPositions(width)),
        [_layer(width) for _ in range(layers)],
        norm=LayerNorm(width),
        vocabulary_head=lambda: TiedVocabularyHead(vocabulary),
        pooler=lambda: Linear(width, width),
    )
    return initialize(made, 0.08)


def encoder_decoder(vocabulary: int, width: int = 32, layers: int = 2) -> EncoderDecoder:
    """Return a small pre-norm encoder-decoder."""
    encoder = stack(vocabulary, width, layers)
    made = EncoderDecoder(
        encoder,
        Embeddings(vocabulary, width, positions=SinusoidalPositions(width)),
        [_layer(width, causal, decoder=True) for _ in range(layers)],
        norm=LayerNorm(width),
    )
    made.embed.tokens = encoder.embed.tokens
    return initialize(made, 0.08)


def bidirectional_stack(vocabulary: int, width: int = 32, layers: int = 2) -> BidirectionalBackbone:
    """Return a forward and a backward stack with shared embeddings."""
    torch.manual_seed(0)
    embed = Embeddings(vocabulary, width, positions=SinusoidalPositions(width))
    ahead, back = (
        TransformerStack(
            embed,
            [_layer(width, causal) for _ in range(layers)],
            norm=LayerNorm(width),
            vocabulary_head=lambda: TiedVocabularyHead(vocabulary),
            pooler=nn.Identity,
        )
        for _ in range(2)
    )
    return initialize(BidirectionalBackbone(ahead, back), 0.08)


def _layer(width: int, pattern: Pattern = full, decoder: bool = False) -> TransformerLayer:
    parts: dict[str, nn.Module] = {"attention": SelfAttention(width, 2, pattern=pattern)}
    if decoder:
        parts["cross"] = CrossAttention(width, 2)
    parts["feed_forward"] = FeedForward(width, 2 * width)
    return TransformerLayer(**{name: PreNorm(part, LayerNorm(width)) for name, part in parts.items()})


COLORS, BEASTS = ["red", "green", "blue", "black"], ["cat", "dog", "fox", "owl"]


@cache
def few_words() -> Path:
    """Return the folder of a tokenizer with a few words, for tasks that are learned in seconds."""
    folder = Path(tempfile.mkdtemp())
    words = f"{' '.join(COLORS)} {' '.join(BEASTS)} the a and is not one two i saw it , . abcdefghijklmnopqrstuvwxyz @"
    train_on_documents([Document(words, folder, 1)] * 9, "wordpiece", 200, lowercase=True).save(folder)
    return folder


def learn(objective: str, train: Path, out: Path, dev: Path | None = None, epochs: float = 8, **options: Any) -> Run:
    """Train a tiny model for a task from scratch."""
    settings: dict[str, Any] = {"optimizer": pt.Optimizer(lr=2e-3), "batch": pt.Batching(size=32, max_length=32)}
    settings |= {"num_seeds": 1, "report": False}
    return pt.finetune(
        "bert-tiny",
        train,
        out=out,
        dev=dev,
        objective=objective,
        epochs=epochs,
        tokenizer=few_words(),
        **settings | options,
    )


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows into a .jsonl file and return its path."""
    path.write_text("".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
