"""Tests of suites with in-context learning: prompts of every kind of task, examples, tables and reports."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest

import pretune as pt
from pretune.evaluation import paired_bootstrap
from pretune.evaluation.in_context import InContextLearning
from pretune.evaluation.suites import suite_names, suite_runner
from pretune.evaluation.suites.declaration import SuiteRows, SuiteTask, find_suite
from pretune.inference.ask import load_text_generator
from pretune.objectives import Task, parse_objective, registry
from pretune.objectives.in_context_prompt import InContextPrompt
from pretune.objectives.tasks.classify import Classify
from pretune.runtime.errors import PretuneError
from pretune.text.examples.cloze_templates import GAP, Cloze
from tests.support.superglue_rows import SUPERGLUE, lines
from tests.support.tiny_models import read, tiny, tune

TEXT = "red blue green yellow stone water good bad sentence : is this grammatical ? no yes review sentiment negative positive"


@cache
def models() -> Path:
    """Return a folder with an untrained GPT-2, T5 and BERT."""
    folder = Path(mkdtemp())
    tokenizer = read([TEXT, "question answer the right true false 0 1 2 3 4 5 similarity from to"] * 9)
    for name, objective in (("gpt2", "lm"), ("t5", "generate"), ("bert", "mlm")):
        tiny(f"{name}-tiny", tokenizer, folder / name, objective)
    return folder


def cola(folder: Path, count: int = 8) -> Path:
    rows = [(f"{'good' if i % 2 else 'bad'} {['red', 'blue', 'green'][i % 3]}", i % 2) for i in range(count)]
    for split in ("train", "dev"):
        (folder / "CoLA").mkdir(parents=True, exist_ok=True)
        (folder / "CoLA" / f"{split}.tsv").write_text("".join(f"x\t{label}\t\t{text}\n" for text, label in rows))
    return folder


def in_context(task: str, suite: str, rows: list[dict[str, Any]], shots: int = 0, **prompt: Any) -> InContextLearning:
    found = find_suite(suite).tasks[task]
    found = SuiteTask(**{**vars(found), "prompt": {**found.prompt, **prompt}})
    splits = {split: SuiteRows(found, split, Path("x"), rows) for split in ("train", "dev")}
    return InContextLearning(load_text_generator(models() / "gpt2"), found, splits, shots)


# -- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
@pytest.mark.parametrize("shots", [0, 1, 2])
@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_task_is_scored_in_context(model: str, shots: int, tmp_path: Path) -> None:
    data = cola(tmp_path / "data")
    options: dict[str, Any] = {"suite": "glue", "data": data, "out": tmp_path / "out", "allow_incomplete": True}
    options |= {"num_seeds": 2} if shots else {}  # without examples nothing is sampled
    result = pt.evaluate(models() / model, shots=shots, **options)
    found = result.evaluation.tasks["cola"]
    assert len(found["scores"]["matthews"]) == (2 if shots else 1) and found["examples"] == 8
    name = {0: "zero", 1: "one", 2: "2"}[shots]
    row = result.table()["GLUE"][0]
    assert row["system"].endswith(f"{model}, {name}-shot") and row["CoLA"] != "-"
    assert any(note.startswith("In-context learning") for note in result.table()["notes"])
    last = "Sentence: bad red\nIs this sentence grammatical?"
    assert found["prompt"].endswith(last) and found["prompt"].count("grammatical? yes\n\n") == shots
    assert found["prompt"].count("grammatical? no\n\n") == shots
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "First prompts" in page and "Is this sentence grammatical?" in page
    assert result.describe()["shots"] == shots and found["cost"]["parameters"] > 100
    again = pt.evaluate(models() / model, shots=shots, **options)
    assert again.describe() == result.describe()
    with pytest.raises(PretuneError, match=r"other settings \(shots"):
        pt.evaluate(models() / model, shots=shots + 1, **{**options, "num_seeds": 2})


@pytest.mark.not_fast
def test_several_devices_give_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def share_out(work: Any, jobs: Any, devices: int) -> None:
        for job in pickle.loads(pickle.dumps(jobs)):
            work(*job)

    monkeypatch.setattr(suite_runner, "run_jobs", share_out)
    options: dict[str, Any] = {"suite": "glue", "data": cola(tmp_path / "data"), "num_seeds": 2, "shots": 1}
    here, there = (
        pt.evaluate(models() / "gpt2", out=tmp_path / str(n), allow_incomplete=True, devices=n, **options)
        for n in (1, 2)
    )
    assert here.evaluation.scores == there.evaluation.scores


@pytest.mark.not_fast
def test_zero_shot_needs_no_training_file_and_is_compared_with_finetuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    data = cola(tmp_path / "data")
    options: dict[str, Any] = {"suite": "glue", "data": data, "allow_incomplete": True}
    tuned = pt.evaluate(models() / "gpt2", out=tmp_path / "tuned", budget=pt.Budget(steps=1), num_seeds=1, **options)
    (data / "CoLA" / "train.tsv").unlink()
    in_context = pt.evaluate(models() / "gpt2", out=tmp_path / "asked", shots=0, **options)
    assert set(in_context.evaluation.tasks) == set(tuned.evaluation.tasks) == {"cola"}
    assert pt.compare(tmp_path / "asked", tmp_path / "tuned")[0]["metric"] == "matthews"
    with pytest.raises(PretuneError, match="no files of GLUE's tasks were found"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "one", shots=1, **options)


@pytest.mark.not_fast
def test_model_that_knows_the_task_gets_a_perfect_score(tmp_path: Path) -> None:
    """A GPT-2 is trained to continue the prompts of the task."""
    data = cola(tmp_path / "data")
    rows = [line.split("\t") for line in (data / "CoLA" / "train.tsv").read_text().splitlines()]
    table = "\n".join(f"Sentence: {row[3]} Is this sentence,{'yes' if row[1] == '1' else 'no'}" for row in rows)
    (tmp_path / "train.csv").write_text(f"text,label\n{table}\n")
    task = "generate(delimiter='grammatical?')"
    tune(models() / "gpt2", tmp_path / "train.csv", tmp_path / "run", task, steps=60)
    result = pt.evaluate(
        tmp_path / "run", suite="glue", data=data, out=tmp_path / "out", allow_incomplete=True, shots=0
    )
    assert result.evaluation.means["cola"]["matthews"] == 1.0


@pytest.mark.not_fast
@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_superglue_tasks_are_prompted(model: str, tmp_path: Path) -> None:
    for name, rows in SUPERGLUE.items():
        (tmp_path / name).mkdir()
        for split in ("train", "val", "test"):
            (tmp_path / name / f"{split}.jsonl").write_text(lines(rows[:3], hide=split == "test"))
    result = pt.evaluate(
        models() / model,
        suite="superglue",
        data=tmp_path,
        out=tmp_path / "out",
        allow_incomplete=True,
        num_seeds=1,
        shots=1,
    )
    found = result.evaluation.means
    assert set(found) == {"copa", "multirc", "record", "wic", "wsc"}
    assert all(0 <= value <= 1 for scores in found.values() for value in scores.values())
    assert (tmp_path / "out" / "submission.zip").is_file()
    prompts = {name: summary["prompt"] for name, summary in result.evaluation.tasks.items()}
    assert prompts["record"].startswith("red met blue\nred met\n\n") and prompts["record"].endswith("red met blue\n")
    assert "Is the word 'red' used in the same way" in prompts["wic"]
    assert prompts["wsc"].endswith("Question: Does 'water' refer to 'red'?\nAnswer:")
    assert prompts["copa"].endswith("red stone What was the cause?")


def test_tags_are_skipped_and_masked_models_rejected(tmp_path: Path) -> None:
    for split in ("train", "testa", "testb"):
        (tmp_path / "CoNLL-2003").mkdir(exist_ok=True)
        (tmp_path / "CoNLL-2003" / f"eng.{split}").write_text("red X Y O\n\n" * 2)
    options: dict[str, Any] = {"suite": "text", "data": tmp_path, "allow_incomplete": True, "shots": 0}
    with pytest.raises(PretuneError, match="supports none of these"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", **options)
    data = cola(tmp_path / "glue")
    with pytest.raises(PretuneError, match="remove --shots to fine-tune it"):
        pt.evaluate(models() / "bert", out=tmp_path / "out", **{**options, "suite": "glue", "data": data})
    with pytest.raises(PretuneError, match="0 or more"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", **{**options, "shots": -1})
    with pytest.raises(PretuneError, match="--from-scratch applies only to fine-tuning"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", from_scratch=True, **options)


# -- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", suite_names())
def test_declared_prompts_fit_their_tasks(suite: str) -> None:
    for task in find_suite(suite).tasks.values():
        (objective,) = parse_objective(task.kind).objectives
        assert isinstance(objective, Task)
        roles = {*task.roles, "word1", "word2"} if objective.kind == "match" else set(task.roles)
        cloze = task.prompt.get("template", "")
        if cloze:
            assert cloze.count(GAP) == 1 and all(f"{{{role}}}" in cloze for role in {"text", "pair"} & roles), task.name
            Cloze.parse(cloze, "pair" in roles, roles - {"text", "pair"})
        if (
            (words := task.prompt.get("verbalizer"))
            and (labels := task.submission.get("labels"))
            and "sts" not in task.name
        ):
            assert {str(label).lower() for label in labels} == {str(label).lower() for label in words}, task.name
        assert bool(objective.in_context_template) != (objective.kind in ("coref", "tag"))


def test_examples_depend_on_the_seed() -> None:
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(20)]
    asking = in_context("cola", "glue", rows, shots=2)
    first, again, other = (asking.sample_examples(seed) for seed in (0, 0, 1))
    assert first.texts == again.texts != other.texts and sorted(first.labels or []) == ["no", "no", "yes", "yes"]


def test_numbers_are_expected_values() -> None:
    import numpy as np

    rows: list[dict[str, Any]] = [{"text": "a", "pair": "b", "label": value} for value in ("0.0", "3.8", "5.0")]
    kind = in_context("sts-b", "glue", rows).task_prompt
    assert kind.gold(rows[1]) == "4" and list(kind.candidates(rows[0])) == ["0", "1", "2", "3", "4", "5"]
    assert kind.answer(rows[0], np.log([0.5, 1e-12, 1e-12, 1e-12, 1e-12, 0.5]))["value"] == pytest.approx(2.5)
    own = in_context("sts-b", "glue", rows, verbalizer={"0": "low", "5": "high"}).task_prompt
    assert [own.gold(row) for row in rows] == ["low", "high", "high"]


def test_unanswerable_questions_are_recognized() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "Q1", "pair": "red stone", "label": [{"text": "red", "start": 0}]},
        {"text": "Q2", "pair": "red stone", "label": []},
    ]
    asking = in_context("squad-2.0", "squad", rows, shots=2)
    assert sorted(asking.sample_examples(0).labels or []) == ["red", "unanswerable"]
    assert asking.task_prompt.answer(rows[0], "Unanswerable.") == {"answer": ""}
    asker = asking.predictor(0, asking.fill_slots(rows))
    assert "red stone\n\nQ: Q1\n\nA: red\n\n" in asker.prompt(asking.fill_slots(rows))


def test_entities_are_scored_within_the_query() -> None:
    rows = [{"text": "a met b", "query": "Then @placeholder left.", "entities": ["a", "b"], "answers": ["b"]}]
    kind = in_context("record", "superglue", rows).task_prompt
    assert kind.slots(rows[0])["query"] == "Then" and list(kind.candidates(rows[0])) == [" a left.", " b left."]
    assert kind.gold(rows[0]) == " b left." and kind.answer(rows[0], [-2.0, -1.0]) == {"answer": "b"}


@pytest.mark.not_fast
def test_task_without_a_prompt_gets_a_default() -> None:
    pair: list[dict[str, Any]] = [{"text": "a", "pair": "b", "label": "x"}, {"text": "a", "pair": "c", "label": "y"}]
    asking = in_context("qam-en", "xglue", pair)
    assert asking.predictor(0, asking.fill_slots(pair)).prompt(asking.fill_slots(pair)) == "a\nb\nLabel:"
    assert asking.task_prompt.candidates(pair[0]) == ["x", "y"]
    swag: list[dict[str, Any]] = [{"text": "a", "question": "b", "choices": ["c", "d"], "label": "B"}]
    asking = in_context("swag", "text", swag)
    assert asking.predictor(0, asking.fill_slots(swag)).prompt(asking.fill_slots(swag)) == "a b"
    assert asking.task_prompt.gold(swag[0]) == "d"


def test_a_new_task_brings_its_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {**registry._registered})

    class YesNoPrompt(InContextPrompt):
        def candidates(self, row: Any) -> list[str]:
            return ["yes", "no"]

        def answer(self, row: Any, output: Any) -> dict[str, Any]:
            return {"label": row["text"].split()[0]}

    @registry.register_task
    @dataclass(frozen=True)
    class YesNo(Classify):
        name: ClassVar[str] = "yes_no"
        in_context_template: ClassVar[str] = "{text} is it? [MASK]"

        def in_context_prompt(self, rows: Any, settings: Any) -> Any:
            return YesNoPrompt()

    assert len(YesNo().demonstration()) == 2
    task = {"title": "Own", "kind": "yes_no", "metrics": ["accuracy"], "files": {"dev": "dev.jsonl"},
            "roles": {"text": "text", "label": "label"}}  # fmt: skip
    (tmp_path / "own.yaml").write_text(json.dumps({"title": "Own", "tasks": {"own": task}}))
    (tmp_path / "dev.jsonl").write_text(lines([{"text": "good red", "label": "good"}, {"text": "bad", "label": "red"}]))
    options: dict[str, Any] = {"suite": str(tmp_path / "own.yaml"), "data": tmp_path, "shots": 0}
    found = pt.evaluate(models() / "gpt2", out=tmp_path / "out", **options).evaluation.tasks["own"]
    assert found["scores"] == {"accuracy": [0.5]} and found["prompt"] == "good red is it?"
    monkeypatch.setattr(YesNo, "in_context_template", "")  # as in a task that says nothing of prompts
    with pytest.raises(PretuneError, match="supports none of these"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "other", **options)


@pytest.mark.not_fast
def test_invalid_prompts_are_rejected() -> None:
    rows = [{"text": "a", "label": "0"}]
    with pytest.raises(PretuneError, match="the prompt has the unknown key 'templat'; did you mean 'template'"):
        in_context("cola", "glue", rows, templat="")
    asking = in_context("cola", "glue", rows, template="{text} {pear} [MASK]")
    with pytest.raises(PretuneError, match=r"the prompt has the placeholder \{pear\}, but the rows have no such field"):
        asking.predictor(0, asking.fill_slots(rows))
    with pytest.raises(PretuneError, match="the prompt has no word for label '2', only for 0, 1"):
        in_context("cola", "glue", [{"text": "a", "label": "2"}], shots=1).sample_examples(0)


def test_changed_prompt_is_another_evaluation(tmp_path: Path) -> None:
    data = cola(tmp_path / "data")
    task = {"title": "Own", "kind": "classify", "metrics": ["accuracy"], "files": {"dev": "CoLA/dev.tsv"},
            "roles": {"text": 4, "label": 2}, "prompt": {"template": "{text} good? [MASK]"}}  # fmt: skip
    options: dict[str, Any] = {"suite": str(tmp_path / "own.yaml"), "data": data, "out": tmp_path / "out", "shots": 0}
    (tmp_path / "own.yaml").write_text(json.dumps({"title": "Own", "tasks": {"own": task}}))
    assert pt.evaluate(models() / "gpt2", **options).evaluation.tasks["own"]["prompt"] == "bad red good?"
    task["prompt"] = {"template": "{text} bad? [MASK]"}
    (tmp_path / "own.yaml").write_text(json.dumps({"title": "Own", "tasks": {"own": task}}))
    with pytest.raises(PretuneError, match=r"other settings \(own\)"):
        pt.evaluate(models() / "gpt2", **options)
