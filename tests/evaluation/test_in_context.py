"""A suite without fine-tuning: what every kind of task asks, which examples are shown, and the same table and report."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation import paired_bootstrap
from pretune.evaluation.in_context import KINDS, InContextLearning, kind_of
from pretune.evaluation.suites import suite_names, suite_runner
from pretune.evaluation.suites.declaration import SuiteRows, SuiteTask, find_suite
from pretune.inference.ask import load_text_generator
from pretune.objectives import parse_objective
from pretune.runtime.errors import PretuneError
from pretune.text.examples.cloze_templates import GAP, Cloze
from tests.evaluation.suites.test_task_kinds import SUPERGLUE, lines
from tests.support.tiny_models import read, tiny, tune

TEXT = "red blue green yellow stone water good bad sentence : is this grammatical ? no yes review sentiment negative positive"


@cache
def models() -> Path:
    """A GPT-2 and a T5, which know nothing, and a BERT."""
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


def asked(task: str, suite: str, rows: list[dict[str, Any]], shots: int = 0, **prompt: Any) -> InContextLearning:
    found = find_suite(suite).tasks[task]
    found = SuiteTask(**{**vars(found), "prompt": {**found.prompt, **prompt}})
    splits = {split: SuiteRows(found, split, Path("x"), rows) for split in ("train", "dev")}
    return InContextLearning(load_text_generator(models() / "gpt2"), found, splits, shots)


# -- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [0, 1, 2])
@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_a_task_is_asked_and_scored(model: str, shots: int, tmp_path: Path) -> None:
    data = cola(tmp_path / "data")
    options: dict[str, Any] = {"suite": "glue", "data": data, "out": tmp_path / "out", "subsets": True}
    options |= {"seeds": 2} if shots else {}  # without examples nothing is drawn
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


def test_asking_on_several_devices_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def share_out(work: Any, jobs: Any, devices: int) -> None:
        for job in pickle.loads(pickle.dumps(jobs)):
            work(*job)

    monkeypatch.setattr(suite_runner, "run_jobs", share_out)
    options: dict[str, Any] = {"suite": "glue", "data": cola(tmp_path / "data"), "seeds": 2, "shots": 1}
    here, there = (
        pt.evaluate(models() / "gpt2", out=tmp_path / str(n), allow_incomplete=True, devices=n, **options)
        for n in (1, 2)
    )
    assert here.evaluation.scores == there.evaluation.scores


def test_no_example_needs_no_training_file_and_is_compared_with_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    data = cola(tmp_path / "data")
    options: dict[str, Any] = {"suite": "glue", "data": data, "subsets": True}
    tuned = pt.evaluate(models() / "gpt2", out=tmp_path / "tuned", budget=pt.Budget(steps=1), num_seeds=1, **options)
    (data / "CoLA" / "train.tsv").unlink()
    asked = pt.evaluate(models() / "gpt2", out=tmp_path / "asked", shots=0, **options)
    assert set(asked.evaluation.tasks) == set(tuned.evaluation.tasks) == {"cola"}
    assert pt.compare(tmp_path / "asked", tmp_path / "tuned")[0]["metric"] == "matthews"
    with pytest.raises(PretuneError, match="no files of GLUE's tasks were found"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "one", shots=1, **options)


def test_what_a_model_knows_is_scored(tmp_path: Path) -> None:
    """A GPT-2 that learned to go on as the task's prompt does."""
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


@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_every_kind_of_superglue(model: str, tmp_path: Path) -> None:
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
    prompts = {name: told["prompt"] for name, told in result.evaluation.tasks.items()}
    assert prompts["record"].startswith("red met blue\nred met\n\n") and prompts["record"].endswith("red met blue\n")
    assert "Is the word 'red' used in the same way" in prompts["wic"]
    assert prompts["wsc"].endswith("Question: Does 'water' refer to 'red'?\nAnswer:")
    assert prompts["copa"].endswith("red stone What was the cause?")


def test_tags_are_skipped_and_masked_models_refused(tmp_path: Path) -> None:
    for split in ("train", "testa", "testb"):
        (tmp_path / "CoNLL-2003").mkdir(exist_ok=True)
        (tmp_path / "CoNLL-2003" / f"eng.{split}").write_text("red X Y O\n\n" * 2)
    options: dict[str, Any] = {"suite": "text", "data": tmp_path, "subsets": True, "shots": 0}
    with pytest.raises(PretuneError, match="supports none of these"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", **options)
    data = cola(tmp_path / "glue")
    with pytest.raises(PretuneError, match="remove --shots to fine-tune it"):
        pt.evaluate(models() / "bert", out=tmp_path / "out", **{**options, "suite": "glue", "data": data})
    with pytest.raises(PretuneError, match="0 or more"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", **{**options, "shots": -1})
    with pytest.raises(PretuneError, match="--scratch applies only to fine-tuning"):
        pt.evaluate(models() / "gpt2", out=tmp_path / "out", from_scratch=True, **options)


# -- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", suite_names())
def test_the_declared_prompts_fit_their_tasks(suite: str) -> None:
    for task in find_suite(suite).tasks.values():
        roles = {*task.roles, "word1", "word2"} if kind_of(task) == "match" else set(task.roles)
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
        assert kind_of(task) in KINDS or kind_of(task) == "tag"
        assert parse_objective(task.kind).objectives


def test_examples_are_other_ones_with_another_seed() -> None:
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(20)]
    asking = asked("cola", "glue", rows, shots=2)
    first, again, other = (asking.shown(seed) for seed in (0, 0, 1))
    assert first.texts == again.texts != other.texts and sorted(first.labels or []) == ["no", "no", "yes", "yes"]


def test_numbers_are_what_is_expected() -> None:
    import numpy as np

    rows: list[dict[str, Any]] = [{"text": "a", "pair": "b", "label": value} for value in ("0.0", "3.8", "5.0")]
    kind = asked("sts-b", "glue", rows).kind
    assert kind.right(rows[1]) == "4" and list(kind.options(rows[0])) == ["0", "1", "2", "3", "4", "5"]
    assert kind.answer(rows[0], np.log([0.5, 1e-12, 1e-12, 1e-12, 1e-12, 0.5]))["value"] == pytest.approx(2.5)
    own = asked("sts-b", "glue", rows, verbalizer={"0": "low", "5": "high"}).kind
    assert [own.right(row) for row in rows] == ["low", "high", "high"]


def test_answers_are_written_or_there_is_none() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "Q1", "pair": "red stone", "label": [{"text": "red", "start": 0}]},
        {"text": "Q2", "pair": "red stone", "label": []},
    ]
    asking = asked("squad-2.0", "squad", rows, shots=2)
    assert sorted(asking.shown(0).labels or []) == ["red", "unanswerable"]
    assert asking.kind.answer(rows[0], "Unanswerable.") == {"answer": ""}
    asker = asking.asker(0, asking.labeled(rows))
    assert "red stone\n\nQ: Q1\n\nA: red\n\n" in asker.prompt(asking.labeled(rows))


def test_an_entity_is_read_with_the_query_around_it() -> None:
    rows = [{"text": "a met b", "query": "Then @placeholder left.", "entities": ["a", "b"], "answers": ["b"]}]
    kind = asked("record", "superglue", rows).kind
    assert kind.slots(rows[0])["query"] == "Then" and list(kind.options(rows[0])) == [" a left.", " b left."]
    assert kind.right(rows[0]) == " b left." and kind.answer(rows[0], [-2.0, -1.0]) == {"answer": "b"}


def test_a_task_without_a_prompt_has_the_usual_one() -> None:
    pair: list[dict[str, Any]] = [{"text": "a", "pair": "b", "label": "x"}, {"text": "a", "pair": "c", "label": "y"}]
    asking = asked("qam-en", "xglue", pair)
    assert asking.asker(0, asking.labeled(pair)).prompt(asking.labeled(pair)) == "a\nb\nLabel:"
    assert asking.kind.options(pair[0]) == ["x", "y"]
    swag: list[dict[str, Any]] = [{"text": "a", "question": "b", "choices": ["c", "d"], "label": "B"}]
    asking = asked("swag", "text", swag)
    assert asking.asker(0, asking.labeled(swag)).prompt(asking.labeled(swag)) == "a b"
    assert asking.kind.right(swag[0]) == "d"


def test_prompts_that_cannot_be_are_refused() -> None:
    rows = [{"text": "a", "label": "0"}]
    with pytest.raises(PretuneError, match="a prompt has no key 'word'; did you mean 'words'"):
        asked("cola", "glue", rows, word={})
    asking = asked("cola", "glue", rows, template="{text} {pear} [MASK]")
    with pytest.raises(PretuneError, match=r"the prompt has \{pear\}, but rows have no such field"):
        asking.asker(0, asking.labeled(rows))
    with pytest.raises(PretuneError, match="the prompt has no word for the label '2'; it has words for 0, 1"):
        asked("cola", "glue", [{"text": "a", "label": "2"}], shots=1).shown(0)


def test_a_changed_prompt_is_another_evaluation(tmp_path: Path) -> None:
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
