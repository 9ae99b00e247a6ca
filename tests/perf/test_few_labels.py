"""Tests of perf/few_labels.py: results accumulate in one file, and no run starts after the given minutes."""

from __future__ import annotations

import csv
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def write_data(folder: Path) -> Path:
    """Write a set of texts and one of tags in the format of `pack`."""
    texts = [{"text": f"{'good' if i % 3 else 'bad'} {i}", "label": "yes" if i % 3 else "no"} for i in range(60)]
    tags = [{"words": ["in", f"Rome{i}"], "tags": ["O", "B-LOC"]} for i in range(60)]
    sets = {"SST-2": ("classify", texts), "CoNLL-2003": ("tag", tags)}
    content = {name: {"kind": kind, "pool": rows[:40], "test": rows[40:]} for name, (kind, rows) in sets.items()}
    (folder / "few_labels.xz").write_bytes(lzma.compress(json.dumps(content).encode()))
    return folder / "few_labels.xz"


@pytest.mark.not_fast
def test_runs_accumulate_in_one_file(tmp_path: Path) -> None:
    data, out = write_data(tmp_path), tmp_path / "results.csv"

    def run(*options: str) -> str:
        command = [sys.executable, str(ROOT / "perf" / "few_labels.py"), "run", "--data", str(data), "--out", str(out)]
        settings = ["--models", "pretune-small-en", "--sizes", "25", "--cores-per-job", "1"]
        done = subprocess.run([*command, *settings, *options], capture_output=True, text=True, check=True)
        return done.stdout

    def rows() -> list[dict[str, str]]:
        with out.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    chosen = ["--methods", "TF-IDF+LR", "majority"]
    assert "0 of 4 runs done" in run(*chosen, "--draws", "1", "--minutes", "0")
    assert "4 of 4 runs done" in run(*chosen, "--draws", "1", "--test-rows", "10")
    assert "4 of 4 runs done" in run(*chosen, "--draws", "1"), "runs with fewer test rows are repeated"
    found = {(row["set"], row["method"]): row for row in rows()}
    assert len(found) == 4 and not any(row["error"] for row in found.values())
    assert float(found["SST-2", "TF-IDF+LR"]["score"]) == 1 and float(found["CoNLL-2003", "majority"]["score"]) == 0
    assert "4 of 4 runs done" in run(*chosen, "--draws", "2")
    assert len(rows()) == 12 and [row["test_rows"] for row in rows()] == ["10"] * 4 + ["20"] * 8
