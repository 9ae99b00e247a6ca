"""Tests of perf/run_studies.py: runs share workers, outcomes are saved at once, and data is packed for another machine."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.runtime.recipe import write_recipe
from pretune.studies.study_run import Outcome
from pretune.text.store.store import Store
from tests.support.paths import ROOT
from tests.support.studies import made_up_results, study_content

MODULES = (
    "run_studies",
    "study_attempts",
    "study_data",
    "study_estimates",
    "study_pages",
    "study_pool",
    "study_schedule",
    "study_smoke",
    "study_travel",
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


def test_an_error_of_the_device_repeats_the_run(script: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    content = study_content(seeds=1)
    state = script.StudyState("tiny", script.make_execution(content, tmp_path / "tiny", tmp_path / "text", "cpu"), 1)
    restarted: list[float | None] = []
    kept: list[str] = []

    class Pool:
        """A pool whose calls end at once: with an error of the device if they are runs."""

        size, variables = 2, {"CUDA_MPS_PIPE_DIRECTORY": "x", "TRITON_CACHE_DIR": "y"}

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

        def poll(self, seconds: float, limit: float | None = None) -> list[Any]:
            ended, self.ended = self.ended, []
            return ended

        def restart(self, worker: Any, memory: float | None = None) -> None:
            restarted.append(memory)

    schedule = script.Schedule([state], Pool(), lambda one: kept.append(one.name), lambda one: None, lambda text: None)
    assert schedule.run(1e12)
    assert len(restarted) == 6  # two runs, three times each
    assert schedule.pool.variables == {"TRITON_CACHE_DIR": "y"}  # then without MPS
    assert len(schedule.failed) == 2
    errors = [outcome.error for outcome in script.finished_outcomes(tmp_path / "tiny")]
    assert len(errors) == 2 and all("illegal memory access" in error for error in errors)


def test_data_are_packed_with_stores_and_tokenizers(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write_text("data/text.jsonl", [f"{number * 7919 % 10007} words" for number in range(300)])
    pt.train_tokenizer("data/text.jsonl", kind="wordpiece", vocab_size=100, out="data/tokenizer")
    pt.prepare("data/text.jsonl", "data/tokenizer", "data/store", processes=1)
    Path("data/train.tsv").write_text("text\tlabel\n" + "good\t1\nbad\t0\n" * 500)
    (tmp_path / "studies").mkdir()
    task = {"kind": "task", "train": "data/train.tsv", "dev": "data/train.tsv"}
    content = study_content(base={"model": "bert-tiny"}, evaluations={"word": task})
    text = {"data": "data/text.jsonl", "tokenizer": "data/tokenizer"}
    content["arms"] = {"text": {"pretrain": text}, "store": {"pretrain": {"data": "data/store"}}}
    for arm in content["arms"].values():
        arm["pretrain"] |= {"objective": "mlm", "batch": {"tokens": 64, "max_length": 16}}
    content["base"] = {"model": "bert-tiny"}
    (tmp_path / "studies" / "tiny.yaml").write_text(write_recipe(content))
    script.main(["pack", "parts", "--limit-mib", "0.003"])
    assert len(list(Path("parts").iterdir())) > 1
    script.main(["unpack", "parts", "home"])
    names = ("train.tsv", "text.jsonl", "tokenizer/tokenizer.json", "store/manifest.json")
    assert all(Path("home/data", name).read_bytes() == Path("data", name).read_bytes() for name in names)
    script.main(["toy", "toy"])
    assert len(Path("toy/data/train.tsv").read_text().splitlines()) == 25
    assert Path("toy/data/tokenizer/tokenizer.json").is_file() and Path("toy/data/store/manifest.json").is_file()


def write_text(file: str, texts: Sequence[str]) -> None:
    """Write documents to a .jsonl file, compressed if its name ends with .xz."""
    stream = lzma.open(file, "wt") if file.endswith(".xz") else open(file, "w")  # noqa: SIM115
    with stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def test_english_corpora_are_thinned_to_equal_sizes(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = import_module("study_data")
    folder = tmp_path / "corpora" / "en"
    folder.mkdir(parents=True)
    for name, count in (("small", 30), ("large", 2000)):
        write_text(
            str(folder / f"{name}.jsonl.xz"), [f"{name} {number * 7919 % 10007} words" for number in range(count)]
        )
    whole = (folder / "large.jsonl.xz").stat().st_size
    monkeypatch.setattr(data, "ENGLISH_MIB", 0.5 * whole / (1 << 20))
    monkeypatch.setattr(data, "VOCABULARY", 100)
    data.english(tmp_path, tmp_path / "out")
    store = Store(tmp_path / "out" / "english")
    texts = [
        store.tokenizer.decode(store.sentence(number).tolist()) for number in range(len(store.sentence_offsets) - 1)
    ]
    assert sum(text.startswith("small") for text in texts) == 30
    assert 500 < sum(text.startswith("large") for text in texts) < 1500
    assert not (tmp_path / "out" / "english.jsonl").exists()


def test_smoke_content_executes_every_arm_with_few_steps_of_the_same_size(script: Any) -> None:
    smoke = import_module("study_smoke")
    content = study_content(
        budget={"tokens": 1e6}, search={"lr": [1e-3, 1e-2]}, expect=[{"better": "mlm", "than": "lm"}], seeds=5
    )
    content["evaluations"]["speed"] = {"kind": "latency"}
    found = smoke.smoke_content(content)
    assert "search" not in found and "expect" not in found
    assert (found["seeds"], found["budget"]) == (1, {"tokens": 64.0 * smoke.SMOKE_STEPS})
    assert found["base"] == content["base"] and set(found["arms"]) == {"mlm", "lm"}
    assert set(found["evaluations"]) == {"word"} and found["evaluations"]["word"]["budget"]["steps"] > 3


def test_budgets_are_scaled(script: Any, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "tiny.yaml").write_text(write_recipe(study_content(budget={"tokens": [640, 1280]})))
    assert script.read_contents([], 3, 0.5)["tiny"]["budget"] == {"tokens": [320.0, 640.0]}


def test_projection_multiplies_the_speed_of_the_smoke_test(script: Any) -> None:
    smoke = import_module("study_smoke")
    content = study_content(budget={"tokens": 6400})  # 100 steps of 64 tokens
    one = Outcome("mlm", 0, 1.0, "", cost={"step": 10.0, "seconds": 5.0}, seconds=9.0)
    found = smoke.project(content, "tiny", 3, {"mlm": one})
    assert found == pytest.approx(3 * (100 * smoke.PACKING * 0.5 + 4.0), rel=0.05)  # lm has no outcome


def test_an_unexpected_error_is_told_from_one_in_the_settings(script: Any) -> None:
    attempts = import_module("study_attempts")
    for error in ("AcceleratorError: CUDA error", "InductorError: no", "torch.OutOfMemoryError: CUDA"):
        assert attempts.is_unexpected(error.removeprefix("torch."))
    for error in ("data/x.tsv: there is no such file", "bert-tiny: Error", "the model has no such layer"):
        assert not attempts.is_unexpected(error)


def test_later_attempts_do_not_record_steps(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = import_module("study_attempts")
    from pretune.training import loop
    from pretune.training.jobs import pretraining

    class Training:
        """The part of a training that is changed."""

        cuda_graphs = True

    seen = []
    monkeypatch.setattr(loop, "prepare_execution", lambda training: seen.append(training.cuda_graphs))
    monkeypatch.setattr(pretraining, "pays_to_compile", lambda job, model: False)
    for attempt in (1, 2, 3):
        with attempts.executing(attempt):
            loop.prepare_execution(Training())
            seen.append(pretraining.pays_to_compile(None, None))
    assert seen == [True, False, False, False, False, True]


@pytest.mark.not_fast
def test_a_worker_without_a_result_is_replaced(script: Any, tmp_path: Path) -> None:
    pool = script.WorkerPool(1, tmp_path / "logs")
    try:
        pool.submit(pool.workers[0], "slow", "", time.sleep, 600)
        while not (ended := pool.poll(0.1, limit=0.5)):
            pass
        assert ended[0].crashed and "without a result" in ended[0].error
        assert pool.idle
    finally:
        pool.close()


def test_verdicts_are_sentences_with_numbers(script: Any) -> None:
    pages = import_module("study_pages")
    scores = {"rtd": [0.71, 0.714, 0.712], "mlm": [0.69, 0.692, 0.691], "lm": [0.6, 0.7, 0.65], "broken": [None] * 3}
    found = {}
    for name, expected in {
        "holds": {"better": "rtd", "than": "mlm"},
        "reversed": {"better": "mlm", "than": "rtd"},
        "less": {"better": "rtd", "than": "mlm", "by": 10},
        "equal": {"equal": ["rtd", "mlm"], "within": 5},
        "open": {"better": "mlm", "than": "lm"},
        "missing": {"better": "rtd", "than": "broken"},
    }.items():
        found[name] = pages.verdict_sentence(made_up_results(scores, "glue.accuracy", expect=[expected]))
    assert found["holds"] == "holds: rtd is 2.1 ± 0.4 points ahead of mlm on glue (71.2 ± 0.2 against 69.1 ± 0.1)"
    assert (
        found["reversed"]
        == "does not hold: rtd is 2.1 ± 0.4 points ahead of mlm on glue (71.2 ± 0.2 against 69.1 ± 0.1)"
    )
    assert found["less"].startswith("does not hold: rtd is only 2.1 ± 0.4 points ahead of mlm")
    assert found["equal"].startswith("holds: rtd and mlm are within 5 points of each other on glue")
    assert found["open"].startswith("undecided with three seeds: mlm is 4.1 ± ") and found["open"].endswith("± 5.0)")
    assert found["missing"] == "undecided with 0 seeds: rtd beats broken on glue (not measured)"
    both = made_up_results(scores, expect=[{"better": "rtd", "than": "mlm"}, {"better": "mlm", "than": "lm"}])
    assert pages.verdict_sentence(both).startswith(
        "holds in part: rtd is 2.1"
    ) and "; open with three seeds: mlm is" in pages.verdict_sentence(both)


def test_a_page_has_the_numbers_of_the_source_and_ours(script: Any, tmp_path: Path) -> None:
    pages = import_module("study_pages")
    scores = {"rtd": [0.71, 0.714, 0.712], "mlm": [0.69, 0.692, 0.691]}
    more = {"claim": "RTD is better.", "source": "Someone, 2020", "published": {"rtd": 79.9, "mlm": 75.1}}
    results = made_up_results(scores, expect=[{"better": "rtd", "than": "mlm"}], **more)
    where = {"pretune": "1", "packages": {"torch": "2"}, "python": "3", "machine": "x", "gpu": None}
    cost = {
        "date": "2026-11-19",
        "commit": "abcdef",
        "device": "a GPU",
        "runs": 6,
        "trials": 2,
        "runs_at_once": 14,
        "seconds_of_runs": 600,
    }
    page = pages.StudyPage("tiny", results, where, cost)
    pages.write_page(page, tmp_path / "tiny")
    text = (tmp_path / "tiny" / "summary.md").read_text()
    for part in (
        "**Verdict (a proposal): holds: rtd is 2.1", "| mlm | 75.1 |", "71.2 ± 0.2", "scores.png", "Someone, 2020:", "commit abcdef",
        "10.0 minutes in all, 14 at a time", "| rtd beats mlm on task | 1.68 to 2.52 points | holds |",
    ):  # fmt: skip
        assert part in text, part
    assert (tmp_path / "tiny" / "scores.png").stat().st_size > 1000
    pages.write_verdicts([page], tmp_path)
    assert "| [tiny](tiny/summary.md) | holds | holds: rtd is 2.1" in (tmp_path / "verdicts.md").read_text()


def test_latency_is_measured_alone_only_if_all_models_are_here(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = study_content(seeds=1)
    content["evaluations"]["speed"] = {"kind": "latency"}
    state = script.StudyState("tiny", script.make_execution(content, tmp_path / "tiny", tmp_path / "text", "cpu"), 1)
    measured: list[int] = []
    monkeypatch.setattr(state.execution, "measure_latency", lambda outcomes: measured.append(len(outcomes)))
    runs = state.execution.main_runs({})
    for run in runs:
        state.outcomes[run.folder] = Outcome(run.arm.name, 0, run.budget, run.digest)
    script.measure_latency(state)
    assert measured == []  # the outcomes come from another machine, and the models stayed there
    for run in runs:
        (run.folder / "pretrained").mkdir(parents=True)
    script.measure_latency(state)
    assert measured == [2]
