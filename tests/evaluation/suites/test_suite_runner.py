"""Tests of a suite end to end with a tiny model: every task once, resuming, and reports."""

from __future__ import annotations

import json
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation import paired_bootstrap
from pretune.evaluation.suites import suite_runner
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.submission import check_submission
from pretune.runtime.errors import PretuneError
from tests.support.cli import run_command
from tests.support.one_word_task import start

WORDS = ["red", "blue", "green", "yellow", "stone", "water"]


def sentences(count: int) -> list[tuple[str, str]]:
    """Return texts and labels that one word determines."""
    rest = [" ".join(WORDS[(i * 5 + j) % 6] for j in range(3)) for i in range(count)]
    return [(f"{'good' if i % 2 else 'bad'} {text}", str(i % 2)) for i, text in enumerate(rest)]


def write_suite_files(folder: Path) -> Path:
    """Write CoLA and WNLI in GLUE's format, and partial files of other tasks."""
    cola = "".join(f"x\t{label}\t\t{text}\n" for text, label in sentences(24))
    pairs = [f"{i}\t{text}\tstone\t{label}" for i, (text, label) in enumerate(sentences(16))]
    files = {
        "CoLA/train.tsv": cola,
        "CoLA/dev.tsv": cola,
        "CoLA/test.tsv": "index\tsentence\n" + "".join(f"{i}\t{t}\n" for i, (t, _) in enumerate(sentences(6))),
        "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n" + "\n".join(pairs),
        "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n" + "\n".join(pairs),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


OPTIONS: dict[str, Any] = {
    "suite": "glue", "num_seeds": 2, "allow_incomplete": True, "budget": pt.Budget(steps=8), "optimizer": pt.Optimizer(lr=3e-3),
    "batch": pt.Batching(size=16),
}  # fmt: skip


@cache
def evaluated() -> tuple[Path, Path, Any]:
    data, out = write_suite_files(Path(mkdtemp())), Path(mkdtemp()) / "out"
    return data, out, pt.evaluate(start() / "start", data=data, out=out, **OPTIONS)


@pytest.mark.not_fast
def test_every_available_task_is_scored() -> None:
    _, out, result = evaluated()
    found = result.evaluation
    assert set(found.tasks) == {"cola", "wnli"} and len(found.tasks["cola"]["scores"]["matthews"]) == 2
    assert found.missing["rte"] == "no RTE/train.tsv, no RTE/dev.tsv" and found.tasks["cola"]["incomplete"]["dev"] == [
        24,
        1043,
    ]
    summary = json.loads((out / "results.json").read_text())
    assert summary["tasks"] == found.tasks and summary["averages"]["average"]["missing"]
    cost = found.tasks["wnli"]["cost"]
    assert cost["parameters"] > 1000 and cost["examples_per_second"] > 0 and cost["peak_memory"] > 0
    assert not list(out.rglob("model.safetensors"))
    table = result.table()
    assert table["GLUE"][0]["system"].endswith("start") and table["GLUE"][0]["split"] == "dev"
    assert "±" in table["GLUE"][0]["CoLA"] and "(1 of 9)" in table["GLUE"][0]["average"]
    assert {row["system"] for row in table["GLUE"]} >= {"BERT-base", "RoBERTa"} and table["sources"]
    assert any("24 of 1,043 rows" in note for note in table["notes"])


@pytest.mark.not_fast
def test_report_and_submission_are_written() -> None:
    _, out, _ = evaluated()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "BERT-base" in page and "CoLA" in page and "examples/s" in page
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert archive.namelist() == ["CoLA.tsv"]
        assert len(archive.read("CoLA.tsv").decode().splitlines()) == 7
    with pytest.raises(PretuneError, match="6 answers instead of the 1,063 of CoLA's test split"):
        check_submission(out / "submission.zip", find_suite("glue"))


@pytest.mark.not_fast
def test_finished_tasks_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    data, out, before = evaluated()

    def refuse(*_: Any) -> None:
        raise AssertionError("again")

    monkeypatch.setattr(suite_runner, "run_seed", refuse)
    again = pt.evaluate(start() / "start", data=data, out=out, **OPTIONS)
    assert again.describe() == before.describe()
    with pytest.raises(PretuneError, match=r"other settings \(settings\); choose another --out"):
        pt.evaluate(start() / "start", data=data, out=out, **{**OPTIONS, "strategy": "frozen"})
    with pytest.raises(AssertionError, match="again"):  # a third seed is missing
        pt.evaluate(start() / "start", data=data, out=out, **{**OPTIONS, "num_seeds": 3})


@pytest.mark.not_fast
def test_killed_evaluation_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_suite_files(tmp_path / "data")
    options = {**OPTIONS, "tasks": ["cola"]}
    plain = suite_runner.run_seed
    calls = []

    def stop(plan: Any, material: Any) -> Any:
        calls.append(plan.seed)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(plan, material)

    monkeypatch.setattr(suite_runner, "run_seed", stop)
    with pytest.raises(KeyboardInterrupt):
        pt.evaluate(start() / "start", data=data, out=tmp_path / "out", **options)
    result = pt.evaluate(start() / "start", data=data, out=tmp_path / "out", **options)
    assert calls == [0, 1, 1]
    whole = evaluated()[2].evaluation.tasks["cola"]["scores"]
    assert result.evaluation.tasks["cola"]["scores"] == whole


def test_two_evaluations_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 20)
    _, out, _ = evaluated()
    rows = pt.compare(out, out).rows
    assert [row["task"] for row in rows] == ["CoLA", "WNLI"] and rows[0]["difference"] == 0
    with pytest.raises(PretuneError, match="not an evaluation of a suite"):
        pt.compare(out, out / "cola")


@pytest.mark.not_fast
def test_task_can_use_the_model_of_another_task(tmp_path: Path) -> None:
    rows = [{"premise": text, "hypothesis": "stone", "label": ["entailment", "not_entailment"][int(label)], "idx": i}
            for i, (text, label) in enumerate(sentences(16))]  # fmt: skip
    asked = [{"sentence1": row["premise"], "sentence2": "stone", "label": row["label"], "idx": row["idx"],
              "logic": "Negation" if row["idx"] % 2 else "Intervals"} for row in rows]  # fmt: skip
    for name, content in (("TERRa/train", rows), ("TERRa/val", rows), ("LiDiRus/LiDiRus", asked)):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    options = {**OPTIONS, "suite": "russian-superglue", "num_seeds": 1}
    result = pt.evaluate(start() / "start", data=tmp_path, out=tmp_path / "out", **options)
    found = result.evaluation.tasks
    assert set(found) == {"lidirus", "terra"} and found["lidirus"]["examples"] == 16
    assert [row["phenomenon"] for row in found["lidirus"]["phenomena"]] == ["all", "Intervals", "Negation"]
    assert "LiDiRus by phenomenon" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "out" / "submission.zip") as archive:
        assert archive.namelist() == ["LiDiRus.jsonl"]


@pytest.mark.not_fast
def test_unlabeled_diagnostics_are_predicted_for_the_submission(tmp_path: Path) -> None:
    """GLUE distributes its diagnostics without labels; these are in another file."""
    labels = ("entailment", "neutral", "contradiction")
    pairs = "".join(f"{text}\tstone\t{labels[i % 3]}\n" for i, (text, _) in enumerate(sentences(12)))
    asked = "".join(f"{i}\t{text}\tstone\n" for i, (text, _) in enumerate(sentences(5)))
    files = {
        "MNLI/train": f"sentence1\tsentence2\tgold_label\n{pairs}",
        "diagnostic/diagnostic": f"index\tsentence1\tsentence2\n{asked}",
    }
    files["MNLI/dev_matched"] = files["MNLI/train"]
    for name, content in files.items():
        path = tmp_path / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    result = pt.evaluate(start() / "start", data=tmp_path, out=tmp_path / "out", **{**OPTIONS, "num_seeds": 1})
    assert result.evaluation.tasks["ax"]["scores"] == {} and set(result.evaluation.means) == {"mnli"}
    assert "AX" not in result.table()["GLUE"][0] and "mnli-mm" in result.evaluation.missing
    with zipfile.ZipFile(tmp_path / "out" / "submission.zip") as archive:
        assert archive.namelist() == ["AX.tsv"]
        assert len(archive.read("AX.tsv").decode().splitlines()) == 6


def test_invalid_requests_are_rejected(tmp_path: Path) -> None:
    data = write_suite_files(tmp_path / "data")
    with pytest.raises(PretuneError, match="1,043"):
        pt.evaluate(start() / "start", data=data, out=tmp_path / "out", suite="glue", num_seeds=1)
    with pytest.raises(PretuneError, match="--out"):
        pt.evaluate(start() / "start", data=data, suite="glue")
    with pytest.raises(PretuneError, match="not a folder"):
        pt.evaluate(start() / "start", data=data / "none", suite="glue", out=tmp_path / "o")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(PretuneError, match="exists and is not an evaluation"):
        pt.evaluate(start() / "start", data=data, out=tmp_path / "other", **OPTIONS)
    with pytest.raises(PretuneError, match="the number of seeds must be at least 1"):
        pt.evaluate(start() / "start", data=data, out=tmp_path / "o", suite="glue", num_seeds=0)


@pytest.mark.not_fast
def test_evaluate_on_the_command_line(tmp_path: Path) -> None:
    data = write_suite_files(tmp_path / "data")
    options = [
        "--tasks",
        "wnli",
        "--num-seeds",
        "1",
        "--steps",
        "2",
        "--allow-incomplete",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    result = run_command("evaluate", start() / "start", "--suite", "glue", "--data", data, *options)
    assert set(result.json()["tasks"]) == {"wnli"}


@pytest.mark.end_to_end
def test_two_devices_give_the_same_predictions(tmp_path: Path) -> None:
    data, out, result = evaluated()
    shared = pt.evaluate(start() / "start", data=data, out=tmp_path / "out", devices=2, **OPTIONS)
    assert shared.evaluation.scores == result.evaluation.scores
    answers = [path.relative_to(out) for path in sorted(out.rglob("answers/*.jsonl"))]
    assert len(answers) >= 5
    assert all((out / path).read_bytes() == (tmp_path / "out" / path).read_bytes() for path in answers)
