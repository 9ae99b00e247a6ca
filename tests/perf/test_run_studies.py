"""Tests of perf/run_studies.py: outcomes are saved at once, and restored on another machine."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pretune.runtime.recipe import write_recipe
from tests.support.paths import ROOT
from tests.support.studies import study_content


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the module perf/run_studies.py, whose study files are in a folder of the test, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "perf"))
    monkeypatch.delitem(sys.modules, "run_studies", raising=False)
    module = import_module("run_studies")
    monkeypatch.setattr(module, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(module, "POLL", 0.05)
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
    (tmp_path / "studies" / "tiny.yaml").write_text(write_recipe(study_content()))
    out = tmp_path / "out"
    words = ["tiny", "--minutes", "10", "--out", str(out), "--results", str(tmp_path / "results")]
    script.main([*words, "--seeds", "1", "--save", str(tmp_path / "outcomes.jsonl")])
    first = (tmp_path / "results" / "tiny" / "results.csv").read_text()
    shutil.rmtree(out)
    script.main([*words, "--seeds", "2", "--save", str(tmp_path / "outcomes.jsonl")])
    second = (tmp_path / "results" / "tiny" / "results.csv").read_text()
    assert second.startswith(first.splitlines()[0]) and len(second.splitlines()) == 1 + 2 * (
        len(first.splitlines()) - 1
    )
    trained = sorted(path.parent.parent.name for path in out.glob("tiny/runs/*/*/seed-*/pretrained"))
    kept = [path for path in script.read_saved(tmp_path / "outcomes.jsonl") if path.endswith("outcome.json")]
    assert len(kept) == 4
    assert {path.parent.name for path in out.glob("tiny/runs/*/*/seed-*/pretrained")} == {"seed-1"}, trained
