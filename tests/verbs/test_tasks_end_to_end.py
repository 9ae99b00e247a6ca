"""Tests of every task on the command line: it learns, and output files keep rows and columns."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.models.create_model import make_model
from pretune.objectives import Data, Task, parse_objective, task_names
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.cli import run_command
from tests.support.objective_data import TEMPLATE, few_words, write
from tests.support.task_rows import ROWS

pytestmark = pytest.mark.end_to_end

STRATEGIES = ["frozen", "top(1)", "gradual", "lora(2)+reset(1)", "freelb(2)", "auto"]


def run_json(command: str) -> dict[str, Any]:
    """Run a command with `--json` and return its output."""
    return run_command(*shlex.split(command), "--json").json()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    model = make_model("bert-tiny", 200)
    model.tokenizer = Tokenizer.load(few_words())
    model.save(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_every_task_has_rows() -> None:
    tasks = set(task_names())
    tasks -= {"prompt", "generate"}  # these use the vocabulary head and have their own tests
    tasks -= {"vqa"}  # it reads images: tests/objectives/tasks/test_vqa.py
    assert tasks == {name.partition("(")[0] for name in ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_task_learns_and_output_keeps_the_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count = 80 if name.startswith("rank") else 160  # queries, which have several candidates
    many, few = ROWS[name](count), ROWS[name](24, seed=1)
    write(Path("train.jsonl"), many)
    write(Path("dev.jsonl"), few)
    run_json(
        f"finetune bert-tiny train.jsonl --dev dev.jsonl --objective '{name}' --tokenizer {few_words()} --out run "
        "--epochs 12 --set optimizer.lr=2e-3 --set batch.max_length=32 --set batch.size=32 --num-seeds 1"
    )
    done = pt.Run("run")
    decides = next(
        key
        for key in ("dev/f1", "dev/micro_f1", "dev/conll_f1", "dev/ndcg@10", "dev/spearman", "dev/accuracy")
        if key in done.results
    )
    assert done.results[decides] > 0.8
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "95% interval" in page and decides.removeprefix("dev/") in page and "Training" in page
    said = run_json("predict run dev.jsonl --score --out out.jsonl")
    assert said["scores"][0][decides.removeprefix("dev/")] == pytest.approx(done.results[decides], abs=1e-6)
    rows = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len(few)
    for row, given in zip(rows, few, strict=True):
        assert given.items() <= row.items() and len(row) > len(given)
    run_json("predict run dev.jsonl --out out.csv")
    with Path("out.csv").open(encoding="utf-8", newline="") as file:
        assert [set(row) for row in csv.DictReader(file)] == [set(rows[0])] * len(few)


@pytest.mark.parametrize("name", ROWS)
def test_seeds_splits_reports_and_ensembles(
    name: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("train.jsonl"), rows := ROWS[name](60))
    run_json(
        f"finetune {tiny} train.jsonl --objective '{name}' --out run --epochs 1 --num-seeds 2 --set batch.max_length=32 "
        "--set monitor.patience=1"
    )
    done = pt.Run("run")
    assert done.results["seeds"]["count"] == 2
    judged = json.loads(Path("run/seeds/0/split.json").read_text())["dev_rows"]
    assert 0 < len(judged) < len(rows) / 2 and done.results["rows"] == len(rows) - len(judged)
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Worst answers" in page or ">1.0000</td>" in page
    if not name.startswith("contrast"):
        together = run_json("predict run/seeds/0 run/seeds/1 train.jsonl --score")
        assert [row["model"] for row in together["scores"]] == ["run/seeds/0", "run/seeds/1", "together"]
        assert len(together["predictions"]) == len(rows)


@pytest.mark.parametrize("name", ROWS)
def test_every_strategy_and_other_layers(name: str, tiny: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", ROWS[name](12))
    settings: dict[str, Any] = {
        "budget": pt.Budget(steps=1),
        "batch": pt.Batching(size=8, max_length=32),
        "num_seeds": 1,
    }
    for number, strategy in enumerate([*STRATEGIES, "full"]):
        if strategy == "frozen" and name.startswith("contrast"):
            continue
        objective = f"{name} on mix/mlp" if strategy == "full" else name
        done = pt.finetune(tiny, train, objective=objective, strategy=strategy, out=tmp_path / str(number), **settings)
        assert done.finished, strategy
    assert len(pt.predict(done, train)) == 12 or name.startswith("rank")


def test_row_with_several_queries_gets_a_list_of_answers(tiny: Path, tmp_path: Path) -> None:
    passage = {"text": "i saw the cat and the dog", "entities": [{"text": "cat"}, {"text": "dog"}]}
    asked = [{"query": "the @placeholder is red", "answers": [{"text": "cat"}]}]
    rows = [{"passage": passage, "qas": asked * count, "id": count} for count in (1, 3, 2)]
    file = write(tmp_path / "a.jsonl", rows)
    done = pt.finetune(tiny, file, objective="entity", out=tmp_path / "run", budget=pt.Budget(steps=1))
    answers = pt.predict(done, file, score=True)
    assert [len(row["answer"]) for row in answers] == [1, 3, 2] and [row["id"] for row in answers] == [1, 3, 2]
    assert answers[0]["passage"] == passage and set(answers[0]) == {*rows[0], "answer", "probability", "candidates"}


@pytest.mark.parametrize("name", ROWS)
def test_invalid_rows_are_rejected_with_file_line_and_column(name: str, tmp_path: Path) -> None:
    """Values of each column are made empty, of another type, or missing: each is either accepted or reported."""
    (task,) = parse_objective(name).objectives
    assert isinstance(task, Task)
    file = tmp_path / "bad.jsonl"
    messages = []
    for column in ROWS[name](1)[0]:
        for value in (None, "", 17, [], [None], {"a": 1}, "\ud83d", ["\ud83d", "x"]):
            rows = ROWS[name](6)
            rows[2][column] = value
            file.write_text("\n".join(map(json.dumps, rows)))
            if message := read_error(task, file):
                messages.append(message)
                assert "bad.jsonl" in message and "line 3" in message and "\n" not in message, (column, value)
                assert column in message or name.startswith(("match", "answer", "tag")), (column, value, message)
    assert len(messages) > 2
    for rows in ([], ROWS[name](1)):
        assert "few.jsonl" in read_error(task, write(tmp_path / "few.jsonl", rows)) + "few.jsonl" * bool(rows)


def read_error(task: Task, file: Path) -> str:
    """Return the error message for the examples of a file, or an empty string."""
    try:
        examples = task.read(file, {})
        task.fit(examples).tokenize_examples(Data(Tokenizer.load(few_words()), TEMPLATE, rows=examples), 32)
    except pt.PretuneError as error:
        return str(error)
    return ""


def test_search_uses_the_primary_metric(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    file = write(tmp_path / "a.jsonl", ROWS["contrast(temperature=1)"](16))
    found = pt.tune(tiny, file, dev=file, out=tmp_path / "out", num_trials=1, objective="contrast", epochs=1)
    assert "spearman" in found[0]
