"""Tests of decaNLP: ten official formats as questions on a context, and one model that answers all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation.suites.averages import averages
from pretune.evaluation.suites.declaration import SuiteRows, find_suite
from pretune.evaluation.suites.official_metrics import PARTS, suite_metrics
from pretune.runtime.errors import PretuneError
from pretune.runtime.recipe import read_recipe
from pretune.text.examples.text_to_text import read_text_to_text
from tests.support.cli import run_command
from tests.support.decanlp_files import write, write_decanlp
from tests.support.paths import DOCS
from tests.support.tiny_models import read, tiny

RECIPE = DOCS / "recipes" / "decanlp.yaml"
SUMMARY = {"text": "What is the summary?", "pair": "Rain fell on cnn. It stopped.", "label": "Rain. It stops."}
FIRST: dict[str, dict[str, Any]] = {
    "squad": {"text": "Who came?", "pair": "Ann came to Rome.", "label": "Ann", "gold": ["Ann", "Ann came"]},
    "iwslt": {"text": "Translate from English to German", "pair": "Hello.", "label": "Hallo."},
    "cnn_dailymail": SUMMARY,
    "multinli": {
        "text": 'Hypothesis: "No cat sat." -- entailment, neutral, or contradiction?', "pair": 'Premise: "A cat sat."',
        "label": "contradiction",
    },
    "sst": {"text": "Is this review negative or positive?", "pair": 'A "fine" film', "label": "positive"},
    "srl": {"text": "who led something?", "pair": "The army (led by Ann) won.", "label": "Ann", "gold": ["Ann", "Ann"]},
    "zre": {"text": "Where was Ann born?", "pair": "Ann was born in Rome.", "label": "Rome"},
    "woz": {"text": "What is the change in state?", "pair": "Thai food please", "label": "food: thai;", "group": 0},
    "schema": {
        "text": "What is too big? The cup or The bag?", "pair": "The cup does not fit in the bag because it is too big.",
        "label": "The cup",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    write_decanlp(folder)
    return folder


def rows(task: str, split: str, data: Path) -> SuiteRows:
    return find_suite("decanlp").tasks[task].read(split, data, allow_incomplete=True)


@pytest.mark.parametrize("task", FIRST)
def test_official_files_become_questions_on_a_context(task: str, data: Path) -> None:
    assert rows(task, "dev", data).rows[0] == FIRST[task]


def test_special_cases_of_the_formats(data: Path) -> None:
    assert [row["label"] for row in rows("woz", "dev", data).rows] == [
        "food: thai;", "area: north; phone", "None", "food: thai;",
    ]  # fmt: skip
    second = rows("woz", "dev", data).rows[1]
    assert second["pair"] == "area: west, price -- In the north, and the phone number" and second["group"] == 0
    assert rows("woz", "dev", data).rows[3]["group"] == 1
    assert [row["label"] for row in rows("zre", "dev", data).rows] == ["Rome", "Unanswerable"]
    assert rows("srl", "dev", data).rows[2] == {
        "text": "what did rain?", "pair": "It didn't rain.", "label": "It", "gold": ["It"],
    }  # fmt: skip
    query = rows("wikisql", "dev", data).rows[0]
    assert query["label"] == "SELECT Player FROM table WHERE No. of wins = 3"
    assert query["pair"].startswith("The table has columns Player, No. of wins and key words MAX, MIN, COUNT,")
    assert query["pair"].endswith("-- Who won 3 times?") and query["gold"]["header"] == ["Player", "No. of wins"]
    assert len(rows("multinli", "train", data)) == 2  # rows without a gold label are left out
    assert [len(rows("schema", split, data)) for split in ("train", "dev", "test")] == [80, 2, 100]
    assert rows("iwslt", "dev", data).rows[1]["label"] == "Fisch & Pommes."
    assert [row["label"] for row in rows("sst", "dev", data).rows] == ["positive", "negative"]


def test_broken_files_are_explained(data: Path, tmp_path: Path) -> None:
    write_decanlp(tmp_path)
    (tmp_path / "wikisql/data/dev.tables.jsonl").unlink()
    write(tmp_path / "woz/woz_validate_en.json", '[{"dialogue": [{"transcript": "a"}]}]')
    write(tmp_path / "schema/schema.txt", "one\ntwo\n")
    write(tmp_path / "zre/relation_splits/dev.0", "a\tb\n")
    write(tmp_path / "srl/wiki1.dev.qa", "A sentence .\nno question\n")
    write(tmp_path / "sst/dev_binary_sent.csv", "label,sentence\n2,odd\n")
    write(tmp_path / "squad/dev-v1.1.json", "{")
    for story in (tmp_path / "cnn/stories").iterdir():
        story.unlink()
    for task, message in {
        "wikisql": "the tables dev.tables.jsonl are missing", "woz": "not a valid WOZ file", "zre": "has 2 fields instead of 4",
        "srl": "expected a question and its answers", "sst": "expected 0 or 1 and a sentence", "squad": "not valid JSON",
        "cnn_dailymail": "download the stories again",
    }.items():  # fmt: skip
        with pytest.raises(PretuneError, match=message):
            rows(task, "dev", tmp_path)
    write(tmp_path / "wikisql/data/dev.tables.jsonl", [{"id": "another", "header": []}])
    with pytest.raises(PretuneError, match="expected a question with a query on a table"):
        rows("wikisql", "dev", tmp_path)
    with pytest.raises(PretuneError, match="expected a context, a question, and two answers"):
        rows("schema", "test", tmp_path)


def test_gold_answers_have_the_sum_of_ten_perfect_scores(data: Path) -> None:
    suite = find_suite("decanlp")
    scores = {}
    for name, task in suite.tasks.items():
        found = rows(name, "dev", data).rows
        answers = [{"answer": row["label"]} for row in found]
        scores[name] = suite_metrics(task.metrics, found, answers)
        assert [PARTS[metric](found, answers).compute()[metric] for metric in task.metrics] == [*scores[name].values()]
    # BLEU of these short texts has no 4-grams.
    assert {name: value for name, found in scores.items() for value in found.values() if name != "iwslt"} == {
        name: 1.0 for name in suite.tasks if name != "iwslt"
    }
    scores["iwslt"] = {"bleu_lowercase": 1.0}
    assert averages(suite, scores)["decascore"].value == pytest.approx(10.0)
    del scores["sst"]
    part = averages(suite, scores)["decascore"]
    assert part.value == pytest.approx(9.0) and part.label == " (9 of 10)"


def test_converted_tables_have_questions_contexts_and_answers(data: Path, tmp_path: Path) -> None:
    run_command("convert", "decanlp", "--data", data, "--out", tmp_path / "decanlp", "--allow-incomplete")
    recipe = read_recipe(RECIPE)
    for split in ("train", "dev"):
        for name, file in recipe[split].items():
            first = json.loads((tmp_path / file).read_text(encoding="utf-8").splitlines()[0])
            assert {"question", "context", "answer"} <= first.keys(), name
            table = read_text_to_text(tmp_path / file, {"text": "question", "pair": "context", "label": "answer"})
            assert table.pairs and table.labels == [row["label"] for row in rows(name, split, data).rows]
    with pytest.raises(PretuneError, match="no files of decaNLP were found"):
        pt.convert("decanlp", data=tmp_path / "nothing", out=tmp_path / "other")
    named = pt.convert("glue", data=write_cola(tmp_path / "glue"), out=tmp_path / "cola", allow_incomplete=True)
    assert json.loads(Path(named[0]["file"]).read_text()) == {"text": "Him said.", "label": "0"}


def write_cola(folder: Path) -> Path:
    write(folder / "CoLA/train.tsv", "gj04\t0\t*\tHim said.\n")
    return folder


@pytest.mark.end_to_end
def test_one_model_for_several_tasks_is_scored_by_the_official_metrics(data: Path, tmp_path: Path) -> None:
    tasks = ["zre", "woz", "schema"]
    run_command("convert", "decanlp", "--data", data, "--out", tmp_path / "tables", "--allow-incomplete")
    train = {name: tmp_path / "tables" / f"{name}.train.jsonl" for name in tasks}
    texts = [
        f"question : {r['text']} context : {r['pair']} {r['label']}" for n in tasks for r in rows(n, "train", data).rows
    ]
    tiny("t5-tiny", read(texts[:8] * 6), tmp_path / "t5")
    pt.finetune(
        tmp_path / "t5", train, out=tmp_path / "run", objective="generate(fields=question/context)", task_sampling="uniform",
        budget=pt.Budget(steps=120), batch=pt.Batching(size=8, max_length=96), optimizer=pt.Optimizer(lr=1e-2), num_seeds=1,
        report=False,
    )  # fmt: skip
    result = pt.evaluate(
        tmp_path / "run",
        suite="decanlp",
        tasks=tasks,
        data=data,
        shots=0,
        allow_incomplete=True,
        out=tmp_path / "scores",
    )
    found = result.evaluation.means
    for name in tasks:  # a prompt without examples is the source that the model was trained on
        answers = pt.predict(tmp_path / "run", tmp_path / "tables" / f"{name}.dev.jsonl", task=name)
        expected = suite_metrics(find_suite("decanlp").tasks[name].metrics, rows(name, "dev", data).rows, list(answers))
        assert found[name] == pytest.approx(expected)
    assert found == {"zre": {"cf1": 1.0}, "woz": {"ds_em": 1.0}, "schema": {"exact_match": 1.0}}
    row = result.table()[result.evaluation.suite.title][0]
    assert row["decascore"] == "300.0 (3 of 10)"
