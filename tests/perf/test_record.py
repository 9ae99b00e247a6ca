"""Tests of perf/record.py: jobs save their results at once and resume, pilots are halved, and a toy record runs to its page."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretune.runtime.recipe import write_recipe
from pretune.text.corpus.documents import read_documents
from pretune.text.tokenizers.training import train_on_documents
from tests.support.paths import ROOT
from tests.support.texts import english_documents

MODULES = ("record", "record_jobs", "record_plan", "record_page", "record_travel", "common")
TOY = {
    "preset": "bert-tiny",
    "pilots": {
        "mlm": {"objective": "mlm", "batch": {"tokens": 128, "max_length": 32}},
        "lm": {"objective": "nonsense"},  # fails
        "few": {"objective": "mlm(mask_rate=0.05)", "batch": {"tokens": 128, "max_length": 32}},
    },
    "rounds": [{"budget": {"tokens": 256}, "keep": 1}],
    "proxy": {"tasks": ["cola"], "seeds": 1, "epochs": {"default": 1}},
    "final": {"seconds": 1},
    "scoring": {"tasks": ["cola", "rte"], "seeds": 2, "epochs": {"default": 1}},
    "intermediate": {
        "nli": {"file": "nli.tsv", "tasks": ["rte"], "epochs": 1, "columns": {"text": "sentence1", "pair": "sentence2", "label": "label"}},
        "absent": {"file": "absent.tsv", "tasks": ["cola"], "epochs": 1, "columns": {"text": "text", "label": "label"}},
    },
    "continued": {
        "package": {
            "recipe": {"objective": "mlm", "batch": {"tokens": 128, "max_length": 32}},
            "budget": {"steps": 2},
            "scoring": {"tasks": ["cola"], "seeds": 1, "epochs": {"default": 1}},
        }
    },
    "student": {
        "preset": {"like": "bert-tiny", "config": {"num_hidden_layers": 1}},
        "budget": {"steps": 2},
        "settings": ["batch.tokens=128"],
    },
    "at_once": {"pretrain": 1, "finetune": 2},
    "save_every": 2,
    "incomplete": True,
}  # fmt: skip


@pytest.fixture
def perf(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules of perf/record.py by name, and forget them after the test."""
    monkeypatch.syspath_prepend(str(ROOT / "perf"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return SimpleNamespace(**{name: import_module(name) for name in MODULES})


def script(perf: Any, key: str, code: str, **options: Any) -> Any:
    """Return a job that runs a line of Python."""
    return perf.record_jobs.Job(key, [sys.executable, "-c", code], lambda: {"score": 1}, "any", **options)


class Stepping:
    """A clock that advances by a second whenever it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def runner(perf: Any, home: Path, jobs: list[Any], now: Callable[[], float] = time.monotonic) -> Any:
    return perf.record_jobs.JobRunner(lambda _: jobs, home, {"any": 2}, {"machine": "toy"}, now)


def test_every_result_is_saved_and_failures_stop_only_what_needs_them(perf: Any, tmp_path: Path) -> None:
    jobs = [
        script(perf, "bad", "raise SystemExit('out of memory')"),
        script(perf, "after-bad", "", needs=("bad",)),
        script(perf, "good", "print('done')"),
        script(perf, "after-good", "", needs=("good",)),
    ]
    assert runner(perf, tmp_path, jobs).run(600, 0.01)
    rows = perf.record_jobs.read_rows(tmp_path / "results.jsonl")
    assert rows["bad"]["error"] == "out of memory" and rows["after-bad"]["error"] == "it needs bad, which failed"
    assert rows["good"]["score"] == rows["after-good"]["score"] == 1 and rows["good"]["machine"] == "toy"


def test_jobs_with_a_row_are_not_repeated(perf: Any, tmp_path: Path) -> None:
    mark = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    for _ in range(2):
        assert runner(perf, tmp_path, [script(perf, "one", mark)]).run(600, 0.01)
    assert (tmp_path / "runs").read_text() == "x"


def test_failed_jobs_are_repeated_on_request(perf: Any, tmp_path: Path) -> None:
    runner(perf, tmp_path, [script(perf, "bad", "raise SystemExit(1)"), script(perf, "after", "", needs=("bad",))]).run(
        600
    )
    jobs = [script(perf, "bad", ""), script(perf, "after", "", needs=("bad",))]
    assert runner(perf, tmp_path, jobs).run(600)
    assert "error" in perf.record_jobs.read_rows(tmp_path / "results.jsonl")["bad"]
    perf.record_jobs.forget_failures(tmp_path / "results.jsonl")
    assert runner(perf, tmp_path, jobs).run(600)
    assert all("error" not in row for row in perf.record_jobs.read_rows(tmp_path / "results.jsonl").values())


def test_interrupted_jobs_have_no_row_and_run_again(perf: Any, tmp_path: Path) -> None:
    wait = "import time\ntime.sleep(1e4)"
    jobs = [script(perf, "long", wait), script(perf, "later", "", needs=("long",))]
    assert not runner(perf, tmp_path, jobs, Stepping()).run(60, 0.01)
    assert perf.record_jobs.read_rows(tmp_path / "results.jsonl") == {}
    assert runner(perf, tmp_path, [script(perf, "long", "")]).run(600, 0.01)


def test_jobs_that_cannot_end_in_time_are_not_started(perf: Any, tmp_path: Path) -> None:
    assert not runner(perf, tmp_path, [script(perf, "long", "", seconds=900.0)]).run(600, 0.01)
    assert not (tmp_path / "logs").exists()


def test_a_line_that_was_cut_off_is_ignored_and_does_not_swallow_the_next(perf: Any, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"key": "one"}\n{"key": "tw')
    perf.record_jobs.add_row(file, {"key": "three"})
    assert list(perf.record_jobs.read_rows(file)) == ["one", "three"]


def row(model: str, task: str, score: float) -> dict[str, Any]:
    return {"key": f"{model}-{task}-0", "model": model, "task": task, "score": score}


def test_pilots_are_halved_by_their_scores(perf: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    pilots: dict[str, Any] = {name: {} for name in "abcd"}
    rounds = [{"budget": {"flops": 1e9}, "keep": 2}, {"budget": {"flops": 1e10}, "keep": 1}]
    file.write_text(write_recipe({**TOY, "pilots": pilots, "rounds": rounds, "student": None}))
    plan, rows = perf.record_plan.read_plan(file), dict[str, Any]()

    def known() -> list[str]:
        return [job.key for job in perf.record_plan.record_jobs(plan, tmp_path, rows)]

    def end(scores: dict[str, float], number: int) -> None:
        for key in known():
            rows.setdefault(key, {"key": key})
        for name, score in scores.items():
            model = f"pilot-{number}-{name}"
            rows[f"{model}-cola-0"] = row(model, "cola", score)

    assert {key for key in known() if key.count("-") == 2} == {f"pilot-1-{name}" for name in "abcd"}
    end({"a": 10.0, "b": 30.0, "c": 20.0}, 1)  # d has no score: it failed
    assert {key for key in known() if key.startswith("pilot-2") and key.count("-") == 2} == {"pilot-2-b", "pilot-2-c"}
    end({"b": 31.0, "c": 32.0}, 2)
    record = next(job for job in perf.record_plan.record_jobs(plan, tmp_path, rows) if job.key == "record")
    assert record.facts["pilot"] == "c"


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_archives_travel_in_parts(perf: Any, tmp_path: Path, size: int) -> None:
    data = bytes((i * i * 31 + i // 7) % 251 for i in range(size))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(data)
    (tmp_path / "b.tsv").write_bytes(data[:7])
    travel = perf.record_travel
    sizes = travel.pack({"store": tmp_path / "store", "deep/b.tsv": tmp_path / "b.tsv"}, tmp_path / "parts", 300)
    assert sizes["parts"] == len(list((tmp_path / "parts").iterdir())) == -(-sizes["packed"] // 300)
    again = travel.pack({"store": tmp_path / "store", "deep/b.tsv": tmp_path / "b.tsv"}, tmp_path / "again", 300)
    assert again == sizes and (tmp_path / "again/1/part").read_bytes() == (tmp_path / "parts/1/part").read_bytes()
    assert travel.unpack(tmp_path / "parts", tmp_path / "home")
    assert (tmp_path / "home" / "store" / "a").read_bytes() == data
    assert (tmp_path / "home" / "deep" / "b.tsv").read_bytes() == data[:7]
    last = tmp_path / "parts" / str(sizes["parts"])
    damaged = bytearray((last / "part").read_bytes())
    damaged[-1] ^= 1
    (last / "part").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        travel.unpack(tmp_path / "parts", tmp_path / "home")
    if sizes["parts"] > 1:
        (last / "manifest.json").unlink()
        assert not travel.unpack(tmp_path / "parts", tmp_path / "home")  # it waits for the last one


def test_models_return_in_parts_and_only_once(perf: Any, tmp_path: Path) -> None:
    home, model = tmp_path / "home", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "weights").write_bytes(bytes(range(256)) * 2000)
    perf.record_travel.split(model, home / "outbox", 60_000)
    sent = []
    for trip in ("one", "two"):
        (tmp_path / "back" / trip).mkdir(parents=True)
        sent.append(perf.record.send(home, tmp_path / "back" / trip))
    assert len(sent[0]) == 5 and 0 < len(sent[1]) <= 5 and not set(sent[0]) & set(sent[1])
    perf.record_travel.join(tmp_path / "back", "model", tmp_path / "joined")
    assert (tmp_path / "joined/model/weights").read_bytes() == (model / "weights").read_bytes()
    (tmp_path / "back" / "one" / sent[0][2]).unlink()
    with pytest.raises(FileNotFoundError, match="parts of model are missing"):
        perf.record_travel.join(tmp_path / "back", "model", tmp_path / "joined")


def test_the_page_of_no_results_says_so(perf: Any, tmp_path: Path) -> None:
    plan = perf.record_plan.read_plan(ROOT / "perf" / "record.yaml")
    pilots = perf.record_plan.read_plan(ROOT / "perf" / "record_pilots.yaml")
    perf.record_page.write_page([], plan, pilots, tmp_path / "record.md")
    page = (tmp_path / "record.md").read_text()
    assert "**The full run is not measured yet.**" in page and "**No pilot is measured yet.**" in page
    assert "27 of 27 results are missing" in page and "| BERT-base | test | 77.3 |" in page


def write_tasks(folder: Path) -> None:
    """Write a few rows of the five tasks and MNLI in their official layouts."""
    words = [
        "The old mill by the river.",
        "Mill old the river by the.",
        "She sings well every day.",
        "Well day sings every she.",
    ] * 4
    header = "index\tsentence1\tsentence2\tlabel\n"
    pairs = [f"{i}\t{text}\tA mill.\t{('entailment', 'not_entailment')[i % 2]}\n" for i, text in enumerate(words)]
    nli = [f"{text}\tA mill.\t{('entailment', 'neutral', 'contradiction')[i % 3]}\n" for i, text in enumerate(words)]
    columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    scores = [f"{i}\t\t\t\t\t\t\t{text}\tA mill.\t{i % 5}.0\n" for i, text in enumerate(words)]
    for name, content in {
        "SST-2": "sentence\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(words)),
        "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA mill.\tThe mill.\n",
        "CoLA": "".join(f"x\t{1 - i % 2}\t\t{text}\n" for i, text in enumerate(words)),
        "RTE": header + "".join(pairs),
        "STS-B": columns + "".join(scores),
        "MNLI": "sentence1\tsentence2\tgold_label\n" + "".join(nli),
    }.items():
        (folder / name).mkdir(parents=True)
        for split in ("train", "dev"):
            (folder / name / f"{split}.tsv").write_text(content)


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_a_toy_record_from_corpus_to_page(perf: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "wikipedia_toy.jsonl.xz"
    lines = "".join(json.dumps({"text": text, "source": "toy"}) + "\n" for text in english_documents()[:20])
    corpus.write_bytes(lzma.compress(lines.encode()))
    train_on_documents(read_documents([corpus]), "wordpiece", 300, lowercase=True).save(tmp_path / "tokenizer")
    write_tasks(tmp_path / "tasks")
    home, plan, out = tmp_path / "home", tmp_path / "toy.yaml", tmp_path / "out"
    plan.write_text(write_recipe(TOY))
    words = ["--corpora", str(corpus), "--tokenizer", str(tmp_path / "tokenizer"), "--limit-mib", "0.01"]
    perf.record.main(["pack", str(tmp_path / "tasks"), str(tmp_path / "parts"), *words])
    perf.record.main(["unpack", str(tmp_path / "parts"), str(home)])
    assert (home / "nli.tsv").read_text().count("\n") == 5  # a header, and the different pairs

    def call(*words: str) -> str:
        line = [sys.executable, str(ROOT / "perf" / "record.py"), *words]
        return subprocess.run(line, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    call("start", "home", "--plan", str(plan), "--minutes", "20")  # a relative path
    while "still running" in call("follow", str(home), "--minutes", "1", "--out", str(out)):
        pass
    rows = perf.record_jobs.read_rows(out / "results.jsonl")
    assert rows["prepare"]["documents"] == 20
    failed = {key for key, row in rows.items() if "error" in row}
    assert failed == {"pilot-1-lm", "pilot-1-lm-cola-0", "vectors-pilot-1-lm"}, [rows[key] for key in failed]
    assert rows["record"]["pilot"] in ("mlm", "few") and rows["record"]["seconds"] >= 1 and rows["record"]["curve"]
    assert {f"record-{task}-{seed}" for task in ("cola", "rte") for seed in (0, 1)} < rows.keys()
    assert {f"student-{task}-{seed}" for task in ("cola", "rte") for seed in (0, 1)} < rows.keys()
    assert {"package-cola-0", "export-package"} < rows.keys()
    assert "nli-record" in rows and "absent-record" not in rows
    call("join", str(out), "record", str(tmp_path / "joined"))
    assert (tmp_path / "joined" / "record" / "config.json").is_file()
    before = (home / "results.jsonl").read_bytes()
    call("run", str(home), "--plan", str(plan), "--minutes", "1")  # all have ended
    assert (home / "results.jsonl").read_bytes() == before
    page = tmp_path / "record.md"
    call("page", str(out / "results.jsonl"), "--out", str(page), "--plan", str(plan), "--pilots", str(plan))
    text_of_page = page.read_text()
    assert "failed: " in text_of_page and "`few`" in text_of_page and "record.svg" in text_of_page
    assert (tmp_path / "record.svg").is_file()
