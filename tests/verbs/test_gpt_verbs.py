"""Tests of a causal language model with all verbs and with `transformers`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.families import FAMILIES
from pretune.metrics.diversity import diversity_metrics, repetition_rate
from pretune.models.model import Model, Network
from pretune.training.run_folder import Run
from tests.support.cli import run_command as run

WORDS = ["value", "list", "string", "class"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a tiny GPT-2 that has memorized a text: documents of one sentence."""
    folder = tmp_path_factory.mktemp("gpt")
    sentences = [f"the {a} of the {b} is a {b}." for a, b in zip(WORDS, [*WORDS[1:], WORDS[0]], strict=True)]
    (folder / "text.txt").write_text("\n\n".join(sentences * 20), encoding="utf-8")
    tokenizer = pt.train_tokenizer(folder / "text.txt", kind="byte-level-bpe", vocab_size=290)
    family = FAMILIES["gpt2"]
    sizes = {"vocab_size": 320, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 2}
    config = family.read_config(sizes | {"resid_pdrop": 0.0, "embd_pdrop": 0.0})
    torch.manual_seed(0)
    Model(family, config, Network(family.build(config)), tokenizer, "lm").save(folder / "start")
    return pt.pretrain(
        folder / "start", folder / "text.txt", objective="lm", tokenizer=folder / "start", out=folder / "run",
        budget=pt.Budget(steps=200), batch=pt.Batching(tokens=512, max_length=32), optimizer=pt.Optimizer(lr=5e-3),
    )  # fmt: skip


@pytest.mark.not_fast
def test_generation_reproduces_the_text_and_stops_at_its_end(pretrained: Run) -> None:
    assert pretrained.results["lm"] < 1.0
    row = pt.generate(pretrained, ["the list of the string"])[0]
    assert row["text"] == "the list of the string is a string." and row["ended"]
    assert row["continuation"] == " is a string."
    assert pt.generate(pretrained, ["the list of the string"], num_beams=3)[0]["text"] == row["text"]


@pytest.mark.not_fast
def test_generated_texts_are_scored_without_their_prompts(pretrained: Run) -> None:
    loop = "the value the value the value "
    table = pt.generate(pretrained, [loop + "the list", loop + "the class of"], score=True)
    added = [row["continuation"] for row in table.rows]
    assert table.facts == diversity_metrics(added) != diversity_metrics([row["text"] for row in table.rows])
    assert [row["repetition_4"] for row in table.rows] == [repetition_rate(text) for text in added]
    assert "repetition_4" not in pt.generate(pretrained, ["the"], max_new_tokens=2)[0]


@pytest.mark.end_to_end
def test_generate_on_the_command_line(pretrained: Run) -> None:
    prompts = ["the", "the class of"]
    options = ["--max-new-tokens", 12, "--temperature", 0.8, "--top-p", 0.9, "--seed", 1]
    texts = json.loads(run("generate", pretrained.folder, *prompts, *options, "--json").stdout)["texts"]
    assert [row["prompt"] for row in texts] == prompts
    chosen = {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.9}
    assert texts == pt.generate(pretrained, prompts, seed=1, **chosen).rows  # type: ignore[arg-type]
    assert texts != pt.generate(pretrained, prompts, seed=5, **chosen).rows  # type: ignore[arg-type]
    human = run("generate", pretrained.folder, "the list of the string", "--num-beams", 4).stdout
    assert "the list of the string is a string." in human
    refused = run("generate", pretrained.folder, "the", "--num-beams", 2, "--top-k", 5, check=False)
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1
    assert "beam search and sampling cannot be combined" in refused.stderr


@pytest.mark.not_fast
def test_generated_text_equals_that_of_transformers(pretrained: Run) -> None:
    """The exported tokenizer adds nothing to a prompt, although the original was trained with [CLS] and [SEP]."""
    from transformers import pipeline

    write = pipeline("text-generation", model=str(pretrained.folder))
    assert (
        write.tokenizer("the list")["input_ids"] == write.tokenizer("the list", add_special_tokens=False)["input_ids"]
    )
    assert write.model.config.eos_token_id == write.tokenizer.eos_token_id is not None
    for prompt in ("the value of", "the class"):
        theirs = write(prompt, max_new_tokens=20, do_sample=False)[0]["generated_text"]
        assert theirs == pt.generate(pretrained, [prompt], max_new_tokens=20)[0]["text"]


@pytest.mark.not_fast
def test_pretraining_continues_with_the_same_store(pretrained: Run, tmp_path: Path) -> None:
    """An exported template does not make it another tokenizer."""
    continued = pt.pretrain(
        pretrained, pretrained.folder / "store", objective="lm", out=tmp_path / "on", budget=pt.Budget(steps=1),
        batch=pt.Batching(tokens=512, max_length=32),
    )  # fmt: skip
    assert continued.results["lm"] < 1.0


@pytest.fixture(scope="module")
def task(pretrained: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("task")
    with (folder / "train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(80):
            writer.writerow([f"{'the list' if i % 2 else 'a string'} of {WORDS[i % 3]}", ["no", "yes"][i % 2]])
    return pt.finetune(
        pretrained, folder / "train.csv", dev=folder / "train.csv", out=folder / "run", epochs=4,
        objective="classify+0.5*lm", optimizer=pt.Optimizer(lr=3e-3), num_seeds=1,
)  # fmt: skip


@pytest.mark.not_fast
def test_classifier_uses_the_last_token_and_agrees_with_transformers(task: Run) -> None:
    from transformers import pipeline

    assert task.results["dev/accuracy"] > 0.95 and "lm" in task.results
    texts = ["the list of value", "a string of value", "the list of string"]  # an accuracy above 0.95 is all six texts
    ours = task.predict(texts)
    assert [row["label"] for row in ours] == ["yes", "no", "yes"]
    for a, b in zip(ours, pipeline("text-classification", model=str(task.folder))(texts), strict=True):
        assert a["label"] == b["label"] and a["probability"] == pytest.approx(b["score"], abs=1e-4)


@pytest.mark.not_fast
def test_text_without_tokens_does_not_use_its_neighbors(task: Run) -> None:
    """GPT-2 has no template: an empty text has no token to pool."""
    alone, between = task.predict([""])[0], task.predict(["the list of class", "", "a string"])[1]
    assert alone["probability"] == pytest.approx(between["probability"], abs=1e-6)
    vectors = [row["vector"] for row in pt.embed(task, ["the list", "", "a"], pooling="last")]
    assert not np.any(vectors[1]) and np.any(vectors[0])
