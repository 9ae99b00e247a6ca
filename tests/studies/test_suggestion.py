"""Tests of suggestions: candidates, rounds, and the recipe of the winner."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pretune.studies.suggestion import Candidate, Suggestion, SuggestionJob, candidates, rounds
from tests.support.cli import run_command
from tests.support.one_word_task import start
from tests.support.studies import made_up_results


def test_small_corpora_get_no_new_models_unless_nothing_else_fits() -> None:
    small, large, russian = candidates(1e4, 60.0, "en"), candidates(1e7, 60.0, "en"), candidates(1e4, 60.0, "ru")
    assert {one.arm["model"] for one in small} == {"pretune-small-en"}
    assert {one.name for one in large} > {one.name for one in small}
    assert russian and all(one.arm["model"] != "pretune-small-en" for one in russian)
    assert {one.arm["model"] for one in candidates(1e7, 3600.0, "en")} > {"bert-mini"}


@pytest.mark.parametrize("count", [2, 3, 6, 9])
@pytest.mark.parametrize("devices", [1, 4])
def test_rounds_halve_the_candidates_and_use_the_budget(count: int, devices: int) -> None:
    found = rounds(count, 600.0, devices)
    assert found[0][0] == count and found[-1][0] == 2
    assert all(after <= -(-before // 2) or after == 2 for (before, *_), (after, *_) in pairwise(found))
    runs = [number * (2 if number <= 2 else 1) for number, *_ in found]
    used = sum(own * (training + evaluation) for own, (_, training, evaluation) in zip(runs, found, strict=True))
    assert used == pytest.approx(600.0 * devices)


@pytest.mark.parametrize(("steps", "warned"), [(3.0, True), (100.0, False)])
def test_too_short_pilots_are_warned_about(steps: float, warned: bool, tmp_path: Path) -> None:
    results = made_up_results({"a": [0.5, 0.6], "b": [0.4, 0.5]})
    outcomes = tuple(replace(one, cost={**one.cost, "step": steps}) for one in results.outcomes)
    winner = Candidate("a", {"model": "bert-tiny", "pretrain": {}}, "because")
    job = SuggestionJob(["text.txt"], {"train": "train.csv"}, 60.0, tmp_path)
    found = Suggestion(job, 1e6, [winner], [replace(results, outcomes=outcomes)], winner)
    text = " ".join(found.explain())
    assert ("only 3 training steps, too few to compare recipes; give a larger --budget than 60s" in text) == warned


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
def test_suggestion_writes_recipes_that_run(tmp_path: Path) -> None:
    folder, out = start(), tmp_path / "out"
    arguments = [
        "--data",
        folder / "text.txt",
        "--labels",
        folder / "train.csv",
        "--dev",
        folder / "train.csv",
        "--budget",
        "10s",
    ]
    told = run_command("study", "--suggest", *arguments, "--out", out, "--json").json()
    assert {row["round"] for row in told["pilots"]} == {1, 2} and told["suggestion"].startswith("The suggestion is ")
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert "## Candidates" in summary and "## Round 2" in summary
    model = "pretune-small-en"
    if (out / "pretrain.yaml").is_file():
        model = str(tmp_path / "full")
        run_command(
            "pretrain", "--recipe", out / "pretrain.yaml", "--steps", 1, "--set", "budget.seconds=", "--out", model
        )
    run_command(
        "finetune", model, "--recipe", out / "finetune.yaml", "--steps", 1, "--no-report", "--out", tmp_path / "task"
    )


def test_missing_options_are_named(tmp_path: Path) -> None:
    for arguments, message in [
        (["--suggest", "--out", tmp_path / "a"], "--suggest needs a corpus, labeled examples, and a time"),
        (["quick", "--data", "x.txt", "--out", tmp_path / "a"], "--data applies only with --suggest"),
        (
            ["--suggest", "--data", "x", "--labels", "y", "--budget", "3", "--out", tmp_path / "a"],
            "--budget '3' is not a budget",
        ),
        (
            ["--suggest", "--data", "x", "--labels", "y", "--budget", "3steps", "--out", tmp_path / "a"],
            "the budget must be a time",
        ),
        (["quick"], "a study needs a folder for its results; name one with --out"),
        (["--out", tmp_path / "a"], "no study was given"),
    ]:
        found = run_command("study", *arguments, check=False)
        assert found.returncode == 1 and message in found.stderr, found.stderr
    assert not list(tmp_path.iterdir())
