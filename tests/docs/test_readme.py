"""Tests that every command of the README runs, with a shortened quickstart; CI runs it in full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SHORTER = {
    "pretune quickstart": "pretune quickstart --num-seeds 1 --labels-per-class 10 --epochs 1 --seconds 4",
    "--seconds 60": "--seconds 3",
    "--seconds 90": "--seconds 3",
    "--epochs 10": "--epochs 1",
}


def commands() -> list[str]:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.end_to_end
def test_every_command_runs(tmp_path: Path) -> None:
    (tmp_path / "script").symlink_to(ROOT / "script")
    script = "\n".join(commands())
    for long, short in SHORTER.items():
        assert long in script
        script = script.replace(long, short)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert result.returncode == 0, result.stderr
    for expected in ("10 labels per class", "bag of words", "pretune predict runs/task", "Return the sine of x."):
        assert expected in result.stdout
    assert (tmp_path / "pretune-quickstart" / "report.html").stat().st_size > 10_000


def test_both_scripts_run_in_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "script/test" in ci and "script/quickstart" in ci
    assert "pretune quickstart" in (ROOT / "script" / "quickstart").read_text(encoding="utf-8")
