"""Tests of ten tasks as questions about a context: the recipe runs, and one model answers all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.objectives import parse_objective
from pretune.runtime.recipe import read_recipe
from pretune.text.examples.text_to_text import guess_source_target, read_text_to_text
from tests.support.cli import run_command
from tests.support.paths import DOCS
from tests.support.tiny_models import read, tiny

RECIPE = DOCS / "recipes" / "decanlp.yaml"
WORDS = {"red": ("rouge", "rot"), "water": ("eau", "wasser")}
QUESTIONS = ("what is it in french ?", "what is it in german ?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which each task asks for French or German about the same contexts."""
    folder = tmp_path_factory.mktemp("deca")
    (folder / "decanlp").mkdir()
    for number, task in enumerate(read_recipe(RECIPE)["train"]):
        rows = [
            {"question": QUESTIONS[number % 2], "context": word, "answer": both[number % 2]}
            for word, both in WORDS.items()
        ]
        lines = "\n".join(json.dumps(row) for row in rows)
        for part in ("train", "dev"):
            (folder / "decanlp" / f"{task}.{part}.jsonl").write_text(lines, encoding="utf-8")
    texts = [*QUESTIONS, "question : context :", *(f"{word} {' '.join(both)}" for word, both in WORDS.items())]
    tiny("t5-tiny", read(texts * 3), folder / "t5")
    return folder


@pytest.mark.not_fast
def test_recipe_runs_and_scores_are_summed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run_command(
        "finetune", "t5", "--recipe", RECIPE, "--out", "run", "--steps", 80, "--num-seeds", 1,
        "--set", "optimizer.lr=5e-3", "--set", "batch.max_length=32", "--set", "report=false",
    )  # fmt: skip
    results = pt.Run("run").results
    decide = {"squad": "word_f1", "iwslt": "bleu", "cnn_dailymail": "rougeL", "multinli": "accuracy", "sst": "accuracy"}
    decide |= {
        "srl": "word_f1",
        "zre": "word_f1",
        "woz": "exact_match",
        "wikisql": "exact_match",
        "schema": "exact_match",
    }
    assert list(results["batches"].values()) == [8] * 10
    assert results["dev/score"] == pytest.approx(
        sum(results[f"dev/{task}/{metric}"] for task, metric in decide.items())
    )
    alike = [f"dev/{task}/exact_match" for task in decide]
    assert all(results[name] == 1.0 for name in alike)
    row = [{"question": question, "context": "red"} for question in QUESTIONS]
    Path("ask.jsonl").write_text("\n".join(map(json.dumps, row)))
    answers = pt.predict("run", "ask.jsonl", task="squad")
    assert [answer["answer"] for answer in answers] == ["rouge", "rot"]  # another question gives another answer
    assert (
        pt.predict("run", "ask.jsonl", task="woz").rows == answers.rows
    )  # the same with any task name: nothing is specific to a task


def test_question_context_and_answer_columns_are_inferred(folder: Path) -> None:
    names = ["id", "Question", "context", "answer"]
    assert guess_source_target(names) == {"text": "Question", "pair": "context", "label": "answer"}
    assert guess_source_target(names, answered=False) == {"text": "Question", "pair": "context"}
    rows = read_text_to_text(folder / "decanlp" / "sst.train.jsonl", {})
    assert rows.pairs == list(WORDS) and rows.labels == [both[0] for both in WORDS.values()]
    with pytest.raises(pt.PretuneError, match="does not name both texts"):
        parse_objective("generate(fields=a)")
