"""Tests that every tiny case learns in one process, replicated and sharded, with the same losses."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.support.paths import ROOT
from tests.support.tiny_training_cases import CASES, UNSUPPORTED

MODULE = ["-m", "tests.support.tiny_training_cases"]
LAUNCH = [
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
]


@cache
def results(how: str) -> dict[str, list[float]]:
    launcher = [] if how == "alone" else LAUNCH
    answer = subprocess.run(
        [sys.executable, *launcher, *MODULE, how], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["alone", "ddp", "fsdp"])
def test_losses_fall_and_are_equal_for_all_kinds_of_parallelism(name: str, how: str) -> None:
    if (name, how) in UNSUPPORTED:
        pytest.skip("this release of torch loses the gradients")
    losses = results(how)[name]
    assert len(losses) == 12
    assert sum(losses[-3:]) / 3 < losses[0] - 0.05
    assert losses == pytest.approx(results("alone")[name], rel=2e-4)
