"""Tests of XLNet with the verbs: pretraining with memory, resuming, fine-tuning and prediction."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.training.checkpoints import load_newest
from pretune.training.run_folder import Run

WORDS = ["value", "list", "string", "class"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("xlnet")
    sentences = [f"the {a} of the {b} is a {b} of {a}." for a in WORDS for b in WORDS]
    (folder / "text.txt").write_text("\n\n".join(" ".join(sentences[i : i + 3]) for i in range(16)), encoding="utf-8")
    tokenizer = pt.train_tokenizer(folder / "text.txt", kind="sentencepiece-unigram", vocab_size=60)
    family = FAMILIES["xlnet"]
    sizes = {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "mem_len": 8, "dropout": 0.0}
    sizes |= {"initializer_range": 0.1}
    config = family.read_config(sizes)
    torch.manual_seed(0)
    Model(family, config, Network(family.build(config)), tokenizer, "plm").save(folder / "start")
    return pt.pretrain(
        folder / "start", folder / "text.txt", objective="plm(stateful=true)", tokenizer=folder / "start",
        out=folder / "run", budget=pt.Budget(steps=8), batch=pt.Batching(tokens=128, max_length=16),
        optimizer=pt.Optimizer(lr=5e-3), monitor=pt.Monitoring(log_every=1, save_every=4, eval_every=4),
    )  # fmt: skip


@pytest.mark.not_fast
def test_pretraining_learns_and_saves_its_memory(pretrained: Run) -> None:
    first, *_, last = (line["plm"] for line in pretrained.metrics() if "plm" in line)
    assert last < first
    newest = load_newest(pretrained.folder)
    assert newest is not None
    carry = newest[1]["recurrent_states"]
    memory = load_model(pretrained.folder).backbone.restore_state(
        {name.removeprefix("0/"): tensor for name, tensor in carry.items()}
    )
    assert memory.states[0].shape[1:] == (8, 32) and len(memory.states) == 2


@pytest.mark.not_fast
def test_finetuned_model_predicts_like_transformers(pretrained: Run, tmp_path: Path) -> None:
    from transformers import pipeline

    with (tmp_path / "train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(60):
            writer.writerow([f"{'the list' if i % 2 else 'a string'} of {WORDS[i % 3]}", ["no", "yes"][i % 2]])
    task = pt.finetune(
        pretrained, tmp_path / "train.csv", dev=tmp_path / "train.csv", out=tmp_path / "run", epochs=10,
        optimizer=pt.Optimizer(lr=3e-3), num_seeds=1,
)  # fmt: skip
    assert task.results["dev/accuracy"] > 0.95
    texts = ["the list of class", "a string of value", "the list"]
    ours = task.predict(texts)
    assert [row["label"] for row in ours] == ["yes", "no", "yes"]
    for a, b in zip(ours, pipeline("text-classification", model=str(task.folder))(texts), strict=True):
        assert a["label"] == b["label"] and a["probability"] == pytest.approx(b["score"], abs=1e-4)
