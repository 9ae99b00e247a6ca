"""Tests of perf/run_studies.py: runs share workers, outcomes are saved at once, and data is packed for another machine."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pretune.runtime.recipe import write_recipe
from tests.support.paths import ROOT
from tests.support.studies import study_content

MODULES = (
    "run_studies",
    "study_schedule",
    "study_pool",
    "study_travel",
    "study_estimates",
    "detached",
    "record_travel",
)


BROKEN: dict[str, Any] = {"pretrain": {"objective": "mlm", "init_from": "no/such/model"}}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the module perf/run_studies.py, whose study files are in a folder of the test, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "perf"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module("run_studies")
    monkeypatch.setattr(module, "STUDIES", tmp_path / "studies")
    return module


def write_outcome(out: Path, run: str, **outcome: Any) -> Path:
    """Write the outcome of a run into the folder of a study, and return its file."""
    file = out / "runs" / run / "outcome.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(outcome))
    return file


@pytest.mark.parametrize("name", ["locality", "cpu/locality"])
def test_outcomes_are_appended_once_and_restored(script: Any, tmp_path: Path, name: str) -> None:
    out, save = tmp_path / "out" / name, tmp_path / "saved" / "outcomes.jsonl"
    for number in range(3):
        write_outcome(out, f"mlm/100/seed-{number}", seed=number)
        script.save_outcomes(name, out, save)
        assert len(save.read_text().splitlines()) == number + 1
    script.save_outcomes(name, out, save)
    assert len(save.read_text().splitlines()) == 3
    elsewhere = tmp_path / "elsewhere" / name
    kept = write_outcome(elsewhere, "mlm/100/seed-1", seed=1, error="it failed here")
    script.restore_outcomes("another", elsewhere, save)
    assert [file.parent.name for file in elsewhere.rglob("outcome.json")] == ["seed-1"]
    script.restore_outcomes(name, elsewhere, save)
    assert json.loads((elsewhere / "runs/mlm/100/seed-2/outcome.json").read_text()) == {"seed": 2}
    assert json.loads(kept.read_text())["error"] == "it failed here"


def test_a_line_that_was_cut_off_is_written_again(script: Any, tmp_path: Path) -> None:
    out, save = tmp_path / "out", tmp_path / "outcomes.jsonl"
    write_outcome(out, "a/1/seed-0", seed=0)
    write_outcome(out, "b/1/seed-0", seed=0)
    script.save_outcomes("one", out, save)
    save.write_text(save.read_text()[:-20])
    script.save_outcomes("one", out, save)
    assert sorted(script.read_saved(save)) == ["one/runs/a/1/seed-0/outcome.json", "one/runs/b/1/seed-0/outcome.json"]


@pytest.mark.end_to_end
def test_a_new_machine_continues_from_the_saved_outcomes(script: Any, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    content = study_content(search={"lr": [1e-3, 1e-2], "share": 0.5})
    (tmp_path / "studies" / "tiny.yaml").write_text(write_recipe(content))
    broken = study_content(arms={"mlm": {"pretrain": {"objective": "mlm"}}, "broken": BROKEN})
    (tmp_path / "studies" / "partly.yaml").write_text(write_recipe(broken))
    out = tmp_path / "out"
    words = ["run", "tiny", "partly", "--minutes", "10", "--out", str(out), "--results", str(tmp_path / "results")]
    words += ["--save", str(tmp_path / "outcomes.jsonl"), "--at-once", "2", "--device", "cpu"]
    script.main([*words, "--seeds", "1", "--more-seeds", "1"])
    first = (tmp_path / "results" / "tiny" / "results.csv").read_text()
    assert "no/such/model" in (tmp_path / "results" / "partly" / "results.csv").read_text()
    cost = json.loads((tmp_path / "results" / "partly" / "cost.json").read_text())
    assert (cost["runs"], cost["failed_runs"], cost["runs_at_once"]) == (2, 1, 2)
    shutil.rmtree(out)
    script.main([*words, "--seeds", "1", "--more-seeds", "2"])
    second = (tmp_path / "results" / "tiny" / "results.csv").read_text()
    assert second.startswith(first.splitlines()[0])
    assert len(second.splitlines()) == 1 + 2 * (len(first.splitlines()) - 1)
    assert {path.parent.name for path in out.glob("tiny/runs/*/*/*/pretrained")} == {"seed-1"}
    shutil.rmtree(tmp_path / "results")
    shutil.rmtree(out)
    script.main(["results", *words[1:3], "--out", str(out), *words[7:11]])
    assert (tmp_path / "results" / "tiny" / "results.csv").read_text() == second


def crash(path: str) -> str:
    """End the process at the first call, and return a text at the second."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(9)
    return "survived"


@pytest.mark.not_fast
def test_a_worker_that_crashes_is_replaced(script: Any, tmp_path: Path) -> None:
    pool = script.WorkerPool(1, tmp_path / "logs")
    try:
        found = []
        for number in range(3):
            call, argument = (crash, str(tmp_path / "crashed")) if number < 2 else (int, "no number")
            pool.submit(pool.workers[0], str(number), "", call, argument)
            while not (ended := pool.poll(1.0)):
                pass
            found += ended
    finally:
        pool.close()
    assert (found[0].crashed, found[0].error) == (True, "the worker process ended with code 9")
    assert (found[1].crashed, found[1].result) == (False, "survived")
    assert found[2].error is not None and found[2].error.startswith("ValueError")


def test_an_error_of_the_device_repeats_the_run_once(script: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    content = study_content(seeds=1)
    state = script.StudyState("tiny", script.make_execution(content, tmp_path / "tiny", tmp_path / "text", "cpu"), 1)
    restarted: list[float | None] = []
    kept: list[str] = []

    class Pool:
        """A pool whose calls end at once: with an error of the device if they are runs."""

        size, variables = 2, {"CUDA_MPS_PIPE_DIRECTORY": "x"}

        def __init__(self) -> None:
            pool = import_module("study_pool")
            self.workers = [pool.Worker(0, None, None)]
            self.ended: list[Any] = []

        idle = property(lambda self: self.workers if not self.ended else [])
        running = property(lambda self: {ended.key: self.workers[0] for ended in self.ended})

        def submit(self, worker: Any, key: str, label: str, call: Any, *arguments: Any) -> None:
            error = None if key.endswith("prepare") else "AcceleratorError: CUDA error: an illegal memory access"
            pool = import_module("study_pool")
            self.ended.append(pool.Ended(key, worker, 1.0, ({}, {}), error))

        def poll(self, seconds: float) -> list[Any]:
            ended, self.ended = self.ended, []
            return ended

        def restart(self, worker: Any, memory: float | None = None) -> None:
            restarted.append(memory)

    schedule = script.Schedule([state], Pool(), lambda one: kept.append(one.name), lambda one: None, lambda text: None)
    assert schedule.run(1e12)
    assert len(restarted) == 4 and schedule.pool.variables == {}  # two runs, twice each; then without MPS
    errors = [outcome.error for outcome in script.finished_outcomes(tmp_path / "tiny")]
    assert len(errors) == 2 and all("illegal memory access" in error for error in errors)


def test_corpora_are_thinned_and_packed(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, count in (("small", 30), ("large", 3000)):
        with lzma.open(f"data/{name}.jsonl.xz", "wt") as stream:
            stream.writelines(json.dumps({"text": f"{number * 7919 % 10007} words"}) + "\n" for number in range(count))
    Path("data/train.tsv").write_text("text\tlabel\n" + "good\t1\nbad\t0\n" * 500)
    (tmp_path / "studies").mkdir()
    task = {"kind": "task", "train": "data/train.tsv", "dev": "data/train.tsv"}
    pretrain = {"data": "data/*.jsonl.xz", "tokenizer": {"vocab_size": 100}}
    content = study_content(base={"model": "bert-tiny", "pretrain": pretrain}, evaluations={"word": task})
    (tmp_path / "studies" / "tiny.yaml").write_text(write_recipe(content))
    whole = Path("data/large.jsonl.xz").stat().st_size
    script.main(["pack", "parts", "--corpus-mib", str(0.5 * whole / (1 << 20)), "--limit-mib", "0.003"])
    assert len(list(Path("parts").iterdir())) > 1
    script.main(["unpack", "parts", "home"])
    assert Path("home/data/train.tsv").read_text() == Path("data/train.tsv").read_text()
    assert Path("home/data/small.jsonl.xz").read_bytes() == Path("data/small.jsonl.xz").read_bytes()
    with lzma.open("home/data/large.jsonl.xz", "rt") as stream:
        kept = [json.loads(line)["text"] for line in stream]
    assert 800 < len(kept) < 2000
    script.main(["toy", "toy"])
    assert len(Path("toy/data/train.tsv").read_text().splitlines()) == 25


def test_latency_is_measured_alone_only_if_all_models_are_here(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = study_content(seeds=1)
    content["evaluations"]["speed"] = {"kind": "latency"}
    state = script.StudyState("tiny", script.make_execution(content, tmp_path / "tiny", tmp_path / "text", "cpu"), 1)
    measured: list[int] = []
    monkeypatch.setattr(state.execution, "measure_latency", lambda outcomes: measured.append(len(outcomes)))
    from pretune.studies.study_run import Outcome

    runs = state.execution.main_runs({})
    for run in runs:
        state.outcomes[run.folder] = Outcome(run.arm.name, 0, run.budget, run.digest)
    script.measure_latency(state)
    assert measured == []  # the outcomes come from another machine, and the models stayed there
    for run in runs:
        (run.folder / "pretrained").mkdir(parents=True)
    script.measure_latency(state)
    assert measured == [2]
