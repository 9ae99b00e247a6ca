"""Tests of perf/memory.py on a CPU: the sizes that the formula gives are those of the tensors of real training steps."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module perf/memory.py, and forget the modules of perf after the test."""
    monkeypatch.syspath_prepend(str(ROOT / "perf"))
    for name in ("memory", "common", "pretraining_speed"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("PRETUNE_PROGRESS", "none")
    return import_module("memory")


@pytest.mark.not_fast
def test_the_formula_equals_the_tensors_of_real_steps(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    tiny = ["--presets", "bert-tiny", "--tokens", "128", "--length", "32", "--steps", "2", "--device", "cpu"]
    memory.main([*tiny, "--optimizers", "adafactor", "muon", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["optimizer"] for row in rows] == ["adafactor", "muon"]
    for row in rows:
        assert row["measured"] == {part: row[part] for part in ("parameters", "gradients", "state")}
        assert row["total"] == sum(row[part] for part in ("parameters", "gradients", "state", "activations"))
        assert row["peak"] is None  # there is none on a CPU
        assert row["torch"]
    printed = capsys.readouterr().out
    assert printed.count("| bert-tiny |") == 2 and "| - | - |" in printed


def test_the_table_shows_megabytes_and_the_ratio_of_formula_and_peak(memory: Any) -> None:
    sizes = {"parameters": 10_000_000, "gradients": 10_000_000, "state": 20_000_000, "activations": 5_000_000}
    row = {"preset": "bert-base", "optimizer": "adamw", **sizes, "total": 45_000_000, "peak": 50_000_000}
    assert memory.table([row]).splitlines()[-1] == (
        "| bert-base | adamw | 10.0 | 10.0 | 20.0 | 5.0 | 45.0 | 50.0 | 0.90 |"
    )
    unknown = row | {"activations": None, "total": None}
    assert memory.table([unknown]).splitlines()[-1].endswith("| - | - | 50.0 | - |")
