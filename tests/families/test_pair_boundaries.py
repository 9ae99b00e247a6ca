"""Models distinguish pairs by their boundary: ("a man sings", "a dog barks") is not ("a man", "sings a dog barks")."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.adapt_vocabulary import add_special_token
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.models.presets import find_preset, preset_names
from pretune.nn.pooling import pair_features
from pretune.objectives import Data
from pretune.objectives.seq2seq.source_target import with_language
from pretune.objectives.tasks.classify import Classify
from pretune.packed import pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import collate
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from tests.support.texts import english_documents

PAIRS = [
    ("a man sings", "a dog barks"),
    ("a man", "sings a dog barks"),
    ("a man sings a", "dog barks"),
    ("a dog barks", "a man sings"),
]
WORDS = sorted({word for pair in PAIRS for text in pair for word in text.split()})


@cache
def tokenizer(characters: bool = False) -> Tokenizer:
    documents = [
        Document(" ".join(WORDS * 3), Path("x"), 1),
        *(Document(t, Path("x"), 1) for t in english_documents()[:4]),
    ]
    return train_on_documents(documents, "characters" if characters else "bpe", 400, languages=("en",))


def tiny(name: str) -> Model:
    """Return a tiny model of a family with random weights."""
    tokens = tokenizer(characters=name == "elmo")
    family = FAMILIES[name]
    if name == "mbart":  # its inputs have a language
        items = {part: with_language(getattr(family.template, part), "en") for part in ("single", "pair", "target")}
        family = replace(family, template=replace(family.template, **items))
    if name == "word-vectors":
        config: Any = family.read_config({"vocab_size": tokens.size, "hidden_size": 16})
        torch.manual_seed(0)
        return Model(family, config, Network(family.build(config)), tokens)
    preset = next(p for p in preset_names() if p.endswith("-tiny") and find_preset(p)["family"] == name)
    model = make_model(preset, tokens.size, 0, padding=tokens.roles.get("padding"))
    model.tokenizer = tokens
    return replace(model, family=family)


def enlarge(module: Any) -> None:
    """Set random weights that are large enough for small differences to matter."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)


@torch.no_grad()
def read(model: Model, texts: list[tuple[str, str]]) -> tuple[list[tuple[Any, ...]], torch.Tensor]:
    """Return the inputs of the model for each pair, and its outputs."""
    task = Classify(labels=("yes", "no"), pooling=model.family.poolings.get("", "cls"), dropout=0.0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    head = task.head(model.backbone)
    enlarge(model.backbone)
    enlarge(head)
    rows = LabeledRows(Path("rows"), {}, [a for a, _ in texts], [b for _, b in texts])
    laid = task.tokenize_examples(Data(model.require_tokenizer(), model.family.template, rows=rows), 64)
    sequences = task.corrupt(laid.take(np.arange(len(texts))), model.require_tokenizer(), EpochRandom(0))
    batch = collate(sequences)
    ids, segments = (
        np.split(column, sequences.offsets[1:-1]) for column in (sequences.ids, sequences.columns["segment"])
    )
    read = [(tuple(one), tuple(other)) for one, other in zip(ids, segments, strict=True)]
    return read, task.outputs(head.eval(), model.root.eval().backbone, batch)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_distinguishes_pairs_with_different_boundaries(name: str) -> None:
    model = tiny(name)
    read_as, out = read(model, PAIRS)
    assert len(set(read_as)) == len(PAIRS)
    for first in range(len(PAIRS)):
        for second in range(first):
            assert (out[first] - out[second]).abs().max() > 1e-4 * out.abs().max(), (PAIRS[first], PAIRS[second])
    again, same = read(model, PAIRS)
    assert again == read_as and torch.equal(same, out)


def test_pair_features_match_their_definition() -> None:
    states = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0], [7.0, 7.0]])
    packed = pack_lists([[9, 9, 9], [9]], columns={"segment": np.array([0, 0, 1, 0])})
    assert pair_features(states, packed).tolist() == [
        [2.0, 3.0, 5.0, 0.0, 3.0, 3.0, 10.0, 0.0],
        [7.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
    with pytest.raises(PretuneError, match="pooling=pair needs segments to tell two texts apart"):
        Classify(pooling="pair").tokenize_examples(
            Data(tokenizer(), FAMILIES["roberta"].template, rows=LabeledRows(Path("x"), {}, ["a"], ["b"])), 64
        )


def without_separator() -> Tokenizer:
    """Return a tokenizer like that of the published GPT: text tokens and the unknown token, no other special tokens."""
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend, {"unknown": "<unk>"})


def published(name: str, folder: Path, spare: int = 0) -> Model:
    """Save a tiny GPT or LSTM with that vocabulary, and additional rows in the embedding."""
    family, tokens = FAMILIES[name], without_separator()
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    if name != "openai-gpt":
        sizes = {"embedding_size": 16, "hidden_size": 16, "num_layers": 1}
    config = family.read_config(sizes | {"vocab_size": tokens.size + spare})
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), tokens)
    enlarge(model.root)
    model.save(folder)
    return model


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("name", ["openai-gpt", "lstm", "bilstm"])
def test_an_added_separator_is_a_single_token(name: str, spare: int, tmp_path: Path) -> None:
    old = published(name, tmp_path, spare)
    made = add_special_token(load_model(tmp_path), "separator")
    before, after = (model.root.tensors() for model in (old, made))
    size = old.require_tokenizer().size
    table = next(n for n in after if n.endswith("embed.tokens"))
    assert made.require_tokenizer().role("separator") == size == made.require_tokenizer().role("end")
    assert made.config.vocab_size == size + max(1, spare) == len(after[table])
    assert torch.equal(after[table][:size], before[table][:size])
    torch.testing.assert_close(after[table][size], before[table][:size].mean(0))
    assert torch.equal(after[table][size + 1 :], before[table][size + 1 :])
    assert all(torch.equal(after[n], before[n]) for n in after if n != table)
    text = "a man sings"
    assert made.require_tokenizer().encode(text) == old.require_tokenizer().encode(text)


def write_rows(file: Path, pairs: bool) -> Path:
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["text", "pair", "label"] if pairs else ["text", "label"])
        for number, (first, second) in enumerate(PAIRS[:2] * 12):
            label = "ab"[number % 2]
            table.writerow([first, second, label] if pairs else [f"{first} {second}", label])
    return file


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["openai-gpt", "lstm"])
def test_a_task_with_pairs_adds_and_trains_a_missing_separator(name: str, tmp_path: Path) -> None:
    published(name, tmp_path / "start")
    options: dict[str, Any] = {
        "epochs": 40, "optimizer": pt.Optimizer(lr=2e-2, weight_decay=0.0), "batch": pt.Batching(size=8, max_length=16),
        "objective": "classify(dropout=0)",
    }  # fmt: skip
    run = pt.finetune(tmp_path / "start", write_rows(tmp_path / "pairs.csv", True), out=tmp_path / "run", **options)
    model = load_model(run.folder)
    assert model.require_tokenizer().vocabulary[-1] == "<sep>" and model.config.vocab_size == len(WORDS) + 2
    learned = model.backbone.embed.tokens[-1]
    start = add_special_token(load_model(tmp_path / "start"), "separator").backbone.embed.tokens[-1]
    assert not torch.allclose(learned, start, atol=1e-3)
    # Both have the same words: only the boundary distinguishes them.
    first, second = pt.predict(run, write_rows(tmp_path / "again.csv", True)).rows[:2]
    assert first["probabilities"]["a"] > second["probabilities"]["a"] + 1e-3
    # A task without pairs adds nothing.
    single = pt.finetune(tmp_path / "start", write_rows(tmp_path / "one.csv", False), out=tmp_path / "one", **options)
    assert load_model(single.folder).config.vocab_size == len(WORDS) + 1


@pytest.mark.not_fast
def test_transformers_reads_the_separator_of_an_export(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    published("openai-gpt", tmp_path / "start")
    run = pt.finetune(
        tmp_path / "start", write_rows(tmp_path / "pairs.csv", True), out=tmp_path / "run", epochs=3,
        batch=pt.Batching(size=8, max_length=16),
    )  # fmt: skip
    pt.export(run, out=tmp_path / "exported")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "exported")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    assert len(tokens) == theirs.config.vocab_size == len(theirs.get_input_embeddings().weight)
    assert json.loads((tmp_path / "exported" / "tokenizer_config.json").read_text())["sep_token"] == "<sep>"
    probabilities = pt.predict(tmp_path / "exported", write_rows(tmp_path / "again.csv", True)).rows
    for (first, second), ours in zip(PAIRS[:2], probabilities[:2], strict=True):
        inputs = tokens(first, second, return_tensors="pt")
        between = tokens.convert_ids_to_tokens(inputs["input_ids"][0])
        assert between == [*first.split(), "<sep>", *second.split()]
        with torch.no_grad():
            shares = theirs(input_ids=inputs["input_ids"]).logits.softmax(-1)[0]
        names = [theirs.config.id2label[i] for i in range(2)]
        assert dict(zip(names, shares.tolist(), strict=True)) == pytest.approx(ours["probabilities"], abs=1e-5)
