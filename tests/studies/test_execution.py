"""Tests of studies that run: outcomes, failed arms, resuming, and the files of a study."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pretune import PretuneError
from pretune.runtime.recipe import write_recipe
from pretune.studies.execution import StudyExecution, best_outcome, read_latency, read_results
from pretune.studies.planning import plan_study
from pretune.studies.results import StudyResults
from pretune.studies.study_file import parse_study
from pretune.studies.study_report import write_study_report
from pretune.studies.study_run import Outcome, read_outcome
from tests.support.studies import ARMS, study_content, written

BROKEN: dict[str, Any] = {"pretrain": {"objective": "mlm", "init_from": "no/such/model"}}


def execute(content: dict[str, Any], out: Path, **options: Any) -> StudyResults:
    """Do a study in a folder, and write its report."""
    plan = plan_study(parse_study(content, "x"), "cpu")
    outcomes = StudyExecution(plan, content, out, "cpu", **options).run()
    results = read_results(plan.study, outcomes, out)
    write_study_report(results, out)
    return results


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], StudyResults]:
    """Return the folder, the content and the results of a study with a control and an arm that fails."""
    out = tmp_path_factory.mktemp("study") / "out"
    content = study_content(arms={**ARMS, "broken": BROKEN, "none": {"control": True}}, seeds=1)
    content["evaluations"]["speed"] = {"kind": "latency"}
    return out, content, execute(content, out)


Finished = tuple[Path, dict[str, Any], StudyResults]


@pytest.mark.not_fast
def test_arms_get_the_same_tokens_and_a_failed_arm_is_a_row(finished: Finished) -> None:
    out, _, results = finished
    by_arm = {outcome.arm: outcome for outcome in results.outcomes}
    assert list(by_arm) == ["mlm", "lm", "broken", "none"]
    assert by_arm["mlm"].cost["tokens"] == pytest.approx(by_arm["lm"].cost["tokens"], rel=0.1)
    assert by_arm["none"].cost == {} and 0 <= by_arm["none"].metrics["word.accuracy"] <= 1
    assert by_arm["broken"].error is not None and "no/such/model" in by_arm["broken"].error
    assert {"step", "flops", "seconds", "tokens", "mlm"} <= by_arm["mlm"].curve[-1].keys()
    assert sum("dev/mlm" in line for line in by_arm["mlm"].curve) > 1  # evaluations are lines of the log
    assert 0 < by_arm["lm"].trivial["word"] < 1
    assert read_latency(out).keys() == {"mlm", "lm", "none"}
    assert len(list((out / "text").iterdir())) == 1  # one tokenizer and one store for all arms


@pytest.mark.not_fast
def test_files_of_a_study_are_complete_and_readable(finished: Finished) -> None:
    out, content, _ = finished
    assert yaml.safe_load((out / "study.yaml").read_text(encoding="utf-8"))["question"] == content["question"]
    with (out / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], bool(row["error"])) for row in rows] == [
        ("mlm", False),
        ("lm", False),
        ("broken", True),
        ("none", False),
    ]
    told = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert told["question"] == content["question"] and len(told["runs"]) == 4
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert (
        summary.startswith("# Which objective is better?")
        and "## Failed runs" in summary
        and "no/such/model" in summary
    )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 3 and not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    for title in ("In short", "Scores and costs", "Learning curves", "Quality and cost", "Failed runs", "All runs"):
        assert f"<h2>{title}</h2>" in page


@pytest.mark.not_fast
def test_finished_runs_are_not_repeated_and_seeds_can_be_added(finished: Finished) -> None:
    out, content, results = finished
    before = written(out)
    again = execute(content, out)
    assert written(out) == before and again.outcomes == results.outcomes
    more = execute({**content, "seeds": 2, "arms": {name: content["arms"][name] for name in ("broken", "none")}}, out)
    assert {(one.arm, one.seed) for one in more.outcomes} == {("broken", 0), ("broken", 1), ("none", 0), ("none", 1)}
    after = written(out)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 2


@pytest.mark.not_fast
def test_another_study_in_the_same_folder_is_refused(finished: Finished) -> None:
    out, content, _ = finished
    other = {**content, "arms": {**content["arms"], "mlm": {"pretrain": {"objective": "mlm(mask_rate=0.4)"}}}}
    with pytest.raises(PretuneError, match=r"other settings.*; choose another --out"):
        execute(other, out)
    with pytest.raises(PretuneError, match="unit"):
        execute({**content, "budget": {"seconds": 60}}, out)


@pytest.mark.not_fast
def test_failed_runs_can_be_repeated(finished: Finished) -> None:
    out, content, _ = finished
    before = written(out)
    assert execute(content, out, retry_failed=True).failures
    changed = [name for name, when in written(out).items() if before.get(name) != when]
    assert changed and all("broken" in name for name in changed)


def test_missing_files_are_found_before_any_training(tmp_path: Path) -> None:
    content = study_content()
    content["evaluations"]["word"]["dev"] = str(tmp_path / "none.csv")
    with pytest.raises(PretuneError, match=r"evaluations.word: there is no file .*none.csv"):
        execute(content, tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists() and not (tmp_path / "out" / "text").exists()


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text('{"arm": "a"}', encoding="utf-8")
    with pytest.raises(PretuneError, match=r"outcome.json does not have the keys of an outcome"):
        read_outcome(tmp_path)


def test_the_best_outcome_respects_the_direction_of_a_metric() -> None:
    low, high = (
        Outcome("a", 0, 1.0, "", lr, {"t.bits_per_byte": x, "w.f1": x}, {"t": "bits_per_byte", "w": "f1"})
        for lr, x in ((1e-3, 1.0), (1e-4, 2.0))
    )
    assert best_outcome([high, low], "t") is low and best_outcome([low, high], "w") is high


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_search_chooses_a_rate_for_every_arm(tmp_path: Path) -> None:
    content = study_content(seeds=1, search={"lr": [1e-3, 1e-8], "share": 0.5})
    results = execute(content, tmp_path / "out")
    assert all(outcome.lr in (1e-3, 1e-8) for outcome in results.outcomes)
    assert len(list((tmp_path / "out").glob("runs/*/*/lr-*/outcome.json"))) == 4


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_killed_study_repeats_no_finished_run(tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(write_recipe(study_content(seeds=2)), encoding="utf-8")
    command = [sys.executable, "-m", "pretune", "study", str(file), "--out", str(out), "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not written(out) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = written(out)
    assert 1 <= len(before) <= 4
    subprocess.run(command, capture_output=True, check=True)
    after = written(out)
    assert len(after) == 4 and {name: after[name] for name in before} == before
    assert (out / "report.html").is_file()


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_runs_are_distributed_over_processes(tmp_path: Path) -> None:
    content = study_content(seeds=1, arms={**ARMS, "broken": BROKEN})
    results = execute(content, tmp_path / "out", devices=2)
    assert [(one.arm, one.error is None) for one in results.outcomes] == [
        ("mlm", True),
        ("lm", True),
        ("broken", False),
    ]


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_fine_tuning_alone_is_a_study(tmp_path: Path) -> None:
    content = study_content(seeds=1, arms={"full": {}, "frozen": {"finetune": {"strategy": "frozen"}}})
    content |= {"base": {"model": "pretune-small-en"}, "budget": {"tokens": 3000}}
    del content["evaluations"]["word"]["budget"]
    results = execute(content, tmp_path / "out")
    assert all(
        outcome.error is None and outcome.cost["tokens"] >= 3000 and outcome.curve for outcome in results.outcomes
    )


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_built_in_study_runs_in_a_short_form(tmp_path: Path) -> None:
    from pretune.runtime.recipe import read_recipe
    from pretune.studies.study_file import find_study

    content = read_recipe(find_study("quick"))
    content["budget"], content["seeds"] = {"tokens": 2048}, 2
    content["evaluations"]["messages"] |= {"epochs": None, "budget": {"steps": 3}}
    results = execute(content, tmp_path / "out", devices=2)
    assert not results.failures and len(results.outcomes) == 8
    assert "two seeds" in (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
    assert read_latency(tmp_path / "out").keys() == set(results.names)
