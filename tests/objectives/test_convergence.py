"""Every objective learns: on a tiny corpus whose order is easy, it does better than one that knows frequencies alone."""

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

SENTENCES, WORDS = 4, 6


@cache
def rounds() -> Store:
    """Documents of four sentences; the words of each are its own six, in their order, round and round from some word on."""
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
def echoes() -> Store:
    """Documents of eight random words of sixteen, which come again and again."""
    folder = Path(tempfile.mkdtemp())
    chance = random.Random(0)
    texts = [" ".join([chance.choice("abcdefghijklmnop") for _ in range(8)] * 6) for _ in range(200)]
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train_tokenizer([Document(text, folder, 1) for text in texts], "items", 64)
    return build_store([folder / "a.txt"], tokenizer, folder / "store", StoreSettings(split_by="line"), 1)


@cache
def chats() -> Dialogues:
    """Dialogues whose first turn is of a's, whose second is of b's …; who asks and who answers differs."""
    chance, made = random.Random(1), Dialogues(Path("chats"))
    for number in range(300):
        for place, letter in enumerate("abcd"):
            start = chance.randrange(WORDS)
            made.texts.append(" ".join(f"{letter}{(start + i) % WORDS}" for i in range(5)))
            made.roles.append((number + place) % 2)
        made.counts.append(4)
    return made


@cache
def translations() -> LabeledRows:
    """Sentences of a's, and the same in b's, or of c's in d's; both sides begin with the same number."""
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
    return Model(BERT, config, Network(build(config)), rounds().tokenizer)


def xlnet(width: int, memory: int = 0) -> Model:
    config = XLNET.config(
        vocab_size=64, d_model=width, n_layer=2, n_head=2, d_inner=2 * width, mem_len=memory, dropout=0.0,
        initializer_range=0.2,
    )  # fmt: skip
    return Model(XLNET, config, Network(XLNET.build(config)), rounds().tokenizer)


def learn(
    name: str,
    steps: int,
    run: Path,
    make: Callable[[int], Model] = bert,
    length: int = 32,
    store: Store | None = None,
    rows: LabeledRows | Dialogues | None = None,
) -> tuple[Model, dict[str, float]]:
    """A model that has learned, and its losses over the last steps."""
    torch.manual_seed(0)
    store = store or rounds()
    model = make(32)
    mixture = parse_objective(name)
    model.add_heads(mixture.objectives)
    data = Data(store.tokenizer, TEMPLATE, store=store, documents=np.arange(store.documents), rows=rows or chats())
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
def frequencies() -> float:
    """The loss of one who knows frequencies alone."""
    counts = np.bincount(rounds().read(0, rounds().tokens)).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram", "phrase"])
def test_mlm(unit: str, tmp_path: Path) -> None:
    more = {"token": "copies=10", "word": "rate=0.3,final_rate=0.15", "span": "boundary=true", "ngram": "longest=2"}
    more["phrase"] = f"phrases={rounds().folder.parent}/phrases.txt"
    _, last = learn(f"mlm(unit={unit},{more[unit]})", 160, tmp_path)
    assert last["mlm"] < 0.75 * frequencies()
    if unit == "span":
        assert last["boundary"] < 0.75 * frequencies()


def test_sop(tmp_path: Path) -> None:
    _, last = learn("mlm+sop", 200, tmp_path)
    assert last["sop"] < 0.8 * math.log(2)
    assert last["mlm"] < frequencies()


def test_dlm(tmp_path: Path) -> None:
    _, last = learn("mlm+dlm(max_turns=4)", 280, tmp_path)
    assert last["dlm"] < 0.8 * math.log(2)  # one fake of four is of the right letters, and cannot be told
    assert last["mlm"] < frequencies()


@pytest.mark.parametrize(("name", "rate", "steps"), [("rtd", 0.15, 240), ("trtd", 0.25, 200)])
def test_rtd(name: str, rate: float, steps: int, tmp_path: Path) -> None:
    _, last = learn(f"{name}(width=8,layers=1,rate={rate})", steps, tmp_path, rows=translations())
    share = last[f"{name}/replaced"]
    assert 0.05 < share < rate
    assert last[name] < -0.9 * (share * math.log(share) + (1 - share) * math.log(1 - share))
    assert last[f"{name}/accuracy"] > 1 - share
    assert last[f"{name}/precision"] > 0.7
    assert last[f"{name}/recall"] > 0.1
    assert last["generator" if name == "rtd" else "trtd_generator"] < frequencies()


def test_item(tmp_path: Path) -> None:
    model, last = learn("item(mask_last_rate=0.3)", 120, tmp_path)
    assert last["item"] < 0.75 * frequencies()
    found = ranking_metrics(rank_last_items(model, rounds(), length=32), at=WORDS)  # of 24
    assert found[f"hit_rate@{WORDS}"] > 0.6


def test_plm(tmp_path: Path) -> None:
    _, last = learn("plm", 120, tmp_path, xlnet)
    assert last["plm"] < 0.75 * frequencies()


@pytest.mark.parametrize("name", ["plm(stateful=true)", "lm(stateful=true)"])
def test_memory_tells_what_comes_again(name: str, tmp_path: Path) -> None:
    """Words are random, and come again eight words later, which is beyond a window."""
    _, last = learn(name, 150, tmp_path, partial(xlnet, memory=8), 8, echoes())
    assert last[name.partition("(")[0]] < 0.7 * math.log(16)
