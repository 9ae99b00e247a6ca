"""Commands that are killed at random moments and restarted give identical results; kills.py runs many more kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", ["prepare", "pretrain", "adapt", "finetune", "evaluate", "tune"])
def test_killed_and_restarted_commands_give_the_same_results(verb: str) -> None:
    script = Path(__file__).with_name("kills.py")
    run = subprocess.run(
        [sys.executable, str(script), "--kills", "20", "--only", verb], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"| {verb} |" in run.stdout
