"""Tests that every objective learns: on a tiny corpus it beats the entropy of the unigram distribution."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.families.encoders.bert import BERT, BertConfig, build
from pretune.families.encoders.xlnet import XLNET
from pretune.inference.rank_items import rank_last_items
from pretune.metrics.ranking import ranking_metrics
from pretune.models.model import Model, Network
from pretune.objectives import Data, parse_objective
from pretune.text.corpus.dialogues import Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.training import train_on_documents as train_tokenizer
from pretune.training.data_streams import make_streams
from pretune.training.loop import Training, train
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, Schedule, resolve_section
from tests.support.objective_data import TEMPLATE

pytestmark = pytest.mark.end_to_end

SENTENCES, WORDS = 4, 6


@cache
def cyclic_corpus() -> Store:
    """Return documents of four sentences, each a cyclic sequence of its own six words from a random start."""
    folder = Path(tempfile.mkdtemp())
    chance = random.Random(0)
    texts = []
    for _ in range(300):
        sentences = []
        for sentence in "abcd"[:SENTENCES]:
            start = chance.randrange(WORDS)
            sentences.append(" ".join(f"{sentence}{(start + i) % WORDS}" for i in range(8)))
        texts.append("\n".join(sentences))
    (folder / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "phrases.txt").write_text("a0 a1\nb2 b3 b4\nc4 c5\n", encoding="utf-8")
    tokenizer = train_tokenizer([Document(text, folder, 1) for text in texts], "items", 64)
    return build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(language="lines"), 1)


@cache
def repeated_corpus() -> Store:
    """Return documents that repeat a random sequence of eight of sixteen words."""
    folder = Path(tempfile.mkdtemp())
    chance = random.Random(0)
    texts = [" ".join([chance.choice("abcdefghijklmnop") for _ in range(8)] * 6) for _ in range(200)]
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train_tokenizer([Document(text, folder, 1) for text in texts], "items", 64)
    return build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)


@cache
def cyclic_dialogues() -> Dialogues:
    """Return dialogues whose first turn consists of a's, the second of b's, and so on; the roles of turns vary."""
    chance, made = random.Random(1), Dialogues(Path("dialogues"))
    for number in range(300):
        for place, letter in enumerate("abcd"):
            start = chance.randrange(WORDS)
            made.texts.append(" ".join(f"{letter}{(start + i) % WORDS}" for i in range(5)))
            made.roles.append((number + place) % 2)
        made.counts.append(4)
    return made


@cache
def translations() -> LabeledRows:
    """Return sentences of a's with translations of b's, or of c's with d's; both sides start at the same number."""
    chance, sides = random.Random(2), (list[str](), list[str]())
    for number in range(600):
        start, letters = chance.randrange(WORDS), ("ab", "cd")[number % 2]
        for side, letter in zip(sides, letters, strict=True):
            side.append(" ".join(f"{letter}{(start + i) % WORDS}" for i in range(12)))
    return LabeledRows(Path("pairs"), {}, *sides, ["en fr", "de nl"] * 300)


def bert(width: int) -> Model:
    config = BertConfig(
        vocab_size=64, hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=2 * width,
        max_position_embeddings=64, hidden_dropout_prob=0.0, initializer_range=0.05,
    )  # fmt: skip
    return Model(BERT, config, Network(build(config)), cyclic_corpus().tokenizer)


def xlnet(width: int, memory: int = 0) -> Model:
    config = XLNET.config(
        vocab_size=64, d_model=width, n_layer=2, n_head=2, d_inner=2 * width, mem_len=memory, dropout=0.0,
        initializer_range=0.2,
    )  # fmt: skip
    return Model(XLNET, config, Network(XLNET.build(config)), cyclic_corpus().tokenizer)


def train_model(
    name: str,
    steps: int,
    run: Path,
    make: Callable[[int], Model] = bert,
    length: int = 32,
    store: Store | None = None,
    rows: LabeledRows | Dialogues | None = None,
) -> tuple[Model, dict[str, float]]:
    """Return a trained model and its losses over the last steps."""
    torch.manual_seed(0)
    store = store or cyclic_corpus()
    model = make(32)
    mixture = parse_objective(name)
    model.add_heads(mixture.objectives)
    data = Data(
        store.tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents), rows=rows or cyclic_dialogues()
    )
    training = Training(
        root=model.root,
        streams=make_streams(mixture, data, tokens=512, packing=Packing(512, length), seed=0),
        budget=Budget(steps=steps),
        optimizer=resolve_section(Optimizer, Optimizer(lr=3e-3, max_grad_norm=1.0, weight_decay=0.0)),
        schedule=resolve_section(Schedule, Schedule(kind="linear", warmup_ratio=0.1)),
        monitor=resolve_section(Monitoring, Monitoring(log_every=20, save_every=0)),
        run=run,
    )
    return model, train(training)


@cache
def unigram_entropy() -> float:
    """Return the entropy of the unigram distribution, the loss of a model that knows only token frequencies."""
    counts = np.bincount(cyclic_corpus().read(0, cyclic_corpus().tokens)).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram", "phrase"])
def test_mlm(unit: str, tmp_path: Path) -> None:
    more = {
        "token": "static_masks=10",
        "word": "mask_rate=0.3,final_mask_rate=0.15",
        "span": "span_boundary=true",
        "ngram": "max_span_length=2",
    }
    more["phrase"] = f"phrases={cyclic_corpus().folder.parent}/phrases.txt"
    _, last = train_model(f"mlm(unit={unit},{more[unit]})", 160, tmp_path)
    assert last["mlm"] < 0.75 * unigram_entropy()
    if unit == "span":
        assert last["boundary"] < 0.75 * unigram_entropy()


def test_sop(tmp_path: Path) -> None:
    _, last = train_model("mlm+sop", 200, tmp_path)
    assert last["sop"] < 0.8 * math.log(2)
    assert last["mlm"] < unigram_entropy()


def test_dlm(tmp_path: Path) -> None:
    _, last = train_model("mlm+dlm(max_turns=4)", 280, tmp_path)
    assert last["dlm"] < 0.8 * math.log(2)  # one of four fake turns has the right letters and cannot be recognized
    assert last["mlm"] < unigram_entropy()


@pytest.mark.parametrize(("name", "rate", "steps"), [("rtd", 0.15, 240), ("trtd", 0.25, 200)])
def test_rtd(name: str, rate: float, steps: int, tmp_path: Path) -> None:
    _, last = train_model(
        f"{name}(generator_hidden_size=8,generator_layers=1,mask_rate={rate})", steps, tmp_path, rows=translations()
    )
    share = last[f"{name}/replaced"]
    assert 0.05 < share < rate
    assert last[name] < -0.9 * (share * math.log(share) + (1 - share) * math.log(1 - share))
    assert last[f"{name}/accuracy"] > 1 - share
    assert last[f"{name}/precision"] > 0.7
    assert last[f"{name}/recall"] > 0.1
    assert last["generator" if name == "rtd" else "trtd_generator"] < unigram_entropy()


def test_item(tmp_path: Path) -> None:
    model, last = train_model("item(mask_last_rate=0.3)", 120, tmp_path)
    assert last["item"] < 0.75 * unigram_entropy()
    found = ranking_metrics(rank_last_items(model, cyclic_corpus(), length=32), at=WORDS)  # out of 24
    assert found[f"hit_rate@{WORDS}"] > 0.6


def test_plm(tmp_path: Path) -> None:
    _, last = train_model("plm", 120, tmp_path, xlnet)
    assert last["plm"] < 0.75 * unigram_entropy()


@pytest.mark.parametrize("name", ["plm(stateful=true)", "lm(stateful=true)"])
def test_memory_predicts_repetitions(name: str, tmp_path: Path) -> None:
    """Words are random and repeat eight words later, which is outside the window."""
    _, last = train_model(name, 150, tmp_path, partial(xlnet, memory=8), 8, repeated_corpus())
    assert last[name.partition("(")[0]] < 0.7 * math.log(16)
