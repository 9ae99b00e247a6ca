"""Every command of the README runs, and script/quickstart runs the same ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORTER = {"--seconds 90": "--seconds 3", "--epochs 30": "--epochs 2"}


def commands() -> list[str]:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [line for block in blocks for line in block.splitlines()]


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
    assert "Return the sine of x." in result.stdout


def test_the_quickstart_runs_the_same_commands() -> None:
    quickstart = (ROOT / "script" / "quickstart").read_text(encoding="utf-8").splitlines()
    assert [line for line in quickstart if line.startswith("pretune ")] == [
        line for line in commands() if line.startswith("pretune ")
    ]
