"""Tests of what the server reads of a folder besides the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pretune.serving.run_files import MAX_POINTS, RunFiles, curves_of, model_signature
from tests.support.serving import encoder


def test_curves_and_report_are_read(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": 2.0, "note": "x"}, {"step": 2, "loss": float("nan"), "dev/accuracy": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    (tmp_path / "report.html").write_text("<p>Ж</p>", encoding="utf-8")
    found = RunFiles.read(str(tmp_path))
    assert found.curves == {"loss": [[1, 2.0]], "dev/accuracy": [[2, 0.5]]}
    assert found.report == "<p>Ж</p>"


def test_folders_without_a_run_have_neither(tmp_path: Path) -> None:
    assert RunFiles.read(str(tmp_path)) == RunFiles({}, None)
    assert RunFiles.read("pretune-small-en") == RunFiles({}, None)
    (tmp_path / "report.html").write_bytes(b"\xff\xfe")
    assert RunFiles.read(str(tmp_path)).report is None


def test_long_curves_are_thinned_out() -> None:
    (points,) = curves_of([{"step": step, "loss": 1.0} for step in range(10 * MAX_POINTS + 5)]).values()
    assert len(points) <= MAX_POINTS and points[0] == [0, 1.0]


def test_a_changed_file_changes_the_signature(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder(), tmp_path / "model"))
    before = model_signature(str(folder))
    (folder / "metrics.jsonl").write_text("{}\n")
    assert model_signature(str(folder)) == before != frozenset()
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    assert model_signature(str(folder)) != before
    shutil.rmtree(folder)
    assert model_signature(str(folder)) == frozenset()
