"""Ten tasks as questions on a context: the recipe runs, one model answers all, and what is asked decides the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.objectives import parse_objective
from pretune.runtime.recipe import read_recipe
from pretune.text.examples.text_to_text import guess_source_target, read_text_to_text
from tests.support.paths import DOCS
from tests.support.tiny_models import read, tiny

RECIPE = DOCS / "recipes" / "decanlp.yaml"
WORDS = {"red": ("rouge", "rot"), "water": ("eau", "wasser")}
QUESTIONS = ("what is it in french ?", "what is it in german ?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each task asks for French or German; the context is the same."""
    folder = tmp_path_factory.mktemp("deca")
    (folder / "decanlp").mkdir()
    for number, task in enumerate(read_recipe(RECIPE)["train"]):
        rows = [
            {"question": QUESTIONS[number % 2], "context": word, "answer": both[number % 2]}
            for word, both in WORDS.items()
        ]
        lines = "\n".join(json.dumps(row) for row in rows)
        for part in ("", "_dev"):
            (folder / "decanlp" / f"{task}{part}.jsonl").write_text(lines, encoding="utf-8")
    texts = [*QUESTIONS, "question : context :", *(f"{word} {' '.join(both)}" for word, both in WORDS.items())]
    tiny("t5-tiny", read(texts * 3), folder / "t5")
    return folder


def test_the_recipe_runs_and_scores_are_summed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(
            ["finetune", "t5", "--recipe", str(RECIPE), "--out", "run", "--steps", "80", "--seeds", "1",
             "--set", "optimizer.lr=5e-3", "--set", "batch.length=32", "--set", "report=false"]
        )  # fmt: skip
    assert not end.value.code
    results = pt.Run("run").results
    decide = {"squad": "word_f1", "iwslt": "bleu", "cnn_dailymail": "rougeL", "multinli": "accuracy", "sst": "accuracy"}
    decide |= {
        "srl": "word_f1",
        "zre": "word_f1",
        "woz": "exact_match",
        "wikisql": "exact_match",
        "schema": "exact_match",
    }
    assert list(results["turns"].values()) == [8] * 10
    assert results["dev/score"] == pytest.approx(
        sum(results[f"dev/{task}/{metric}"] for task, metric in decide.items())
    )
    alike = [f"dev/{task}/exact_match" for task in decide]
    assert all(results[name] == 1.0 for name in alike)
    row = [{"question": question, "context": "red"} for question in QUESTIONS]
    Path("ask.jsonl").write_text("\n".join(map(json.dumps, row)))
    answers = pt.predict("run", "ask.jsonl", task="squad")
    assert [answer["answer"] for answer in answers] == ["rouge", "rot"]  # another question, another answer
    assert pt.predict("run", "ask.jsonl", task="woz").rows == answers.rows  # whatever the task: nothing is its alone


def test_questions_contexts_and_answers_are_found(folder: Path) -> None:
    names = ["id", "Question", "context", "answer"]
    assert guess_source_target(names) == {"text": "Question", "pair": "context", "label": "answer"}
    assert guess_source_target(names, answered=False) == {"text": "Question", "pair": "context"}
    rows = read_text_to_text(folder / "decanlp" / "sst.jsonl", {})
    assert rows.pairs == list(WORDS) and rows.labels == [both[0] for both in WORDS.values()]
    with pytest.raises(pt.PretuneError, match="does not name both texts"):
        parse_objective("generate(fields=a)")
