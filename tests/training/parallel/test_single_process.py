"""Tests of replicas and shards in one process: losses, weights and checkpoints equal those without them.

On a GPU over NCCL: python -m pytest -m gpu tests/training/parallel/test_single_process.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import pretune as pt
from pretune.training.checkpoints import list_checkpoints
from pretune.training.loop import train
from pretune.training.parallel.distributed import World
from pretune.training.recipe_sections import Optimizer, resolve_section
from tests.support.tiny_training_cases import make

STEPS = 6
CASES = [
    (device, parallel, optimizer, False)
    for device in ("cpu", "cuda")
    for parallel, optimizer in (("ddp", "adamw"), ("fsdp", "adamw"), ("fsdp", "muon"), ("fsdp", "lamb"))
]
CASES += [("cuda", parallel, "adamw", True) for parallel in ("ddp", "fsdp")]


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Yield a process group of one process, which exchanges tensors like a world of several."""
    backend = "cpu:gloo,cuda:nccl" if request.node.callspec.params["device"] == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield World(joined=True)
    dist.destroy_process_group()


def train_losses(
    folder: Path, device: str, world: World, parallel: str, optimizer: str, compiled: bool, steps: int = STEPS
) -> list[float]:
    """Return the losses of a tiny training case, from its start or its last checkpoint."""
    torch._dynamo.reset()
    training = make("mlm+nsp", steps, folder, parallel, save=2, compiled=compiled)
    training.world, training.device = world, torch.device(device)
    training.optimizer = resolve_section(
        Optimizer, Optimizer(name=optimizer, lr=3e-3, max_grad_norm=1.0, ema_decay=0.5)
    )  # type: ignore[arg-type]
    train(training, resume=True)
    return [line["mlm"] for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("device", "parallel", "optimizer", "compiled"),
    [pytest.param(*way, marks=[pytest.mark.gpu] if way[0] == "cuda" else []) for way in CASES],
)
def test_process_group_of_one_gives_the_same_losses(
    group: World, device: str, parallel: str, optimizer: str, compiled: bool, tmp_path: Path
) -> None:
    exact = pytest.approx if device == "cpu" else partial(pytest.approx, rel=1e-2)  # half precision
    alone = train_losses(tmp_path / "alone", device, World(), "ddp", optimizer, compiled)
    together = train_losses(tmp_path / "together", device, group, parallel, optimizer, compiled)
    assert together == exact(alone)
    # Started in shards or replicas, finished without them.
    train_losses(tmp_path / "half", device, group, parallel, optimizer, compiled, steps=STEPS - 2)
    assert [path.name for path in list_checkpoints(tmp_path / "half")] == ["step-00000002", "step-00000004"]
    ended = train_losses(tmp_path / "half", device, World(), "ddp", optimizer, compiled)
    assert ended == exact(together)


@pytest.mark.gpu
def test_torchrun_with_one_process_equals_a_plain_run(tmp_path: Path, english: list[str]) -> None:
    """On one GPU, a world of one process has no process group and no overhead."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(part.split()) for part in english[:20]), encoding="utf-8")
    options = ["--steps", str(STEPS), "--seed", "1", "--set", "batch.tokens=512", "--set", "batch.microbatch_tokens=256",
               "--set", "batch.max_length=64", "--set", "monitor.log_every=1", "--set", "tokenizer.kind=wordpiece", "--set", "tokenizer.vocab_size=400"]  # fmt: skip
    found = {}
    for name, launch, more in (
        ("alone", [sys.executable, "-m"], []),
        ("ddp", [sys.executable, "-m", "torch.distributed.run", "--standalone", "-m"], ["--parallel", "ddp"]),
        ("fsdp", [sys.executable, "-m", "torch.distributed.run", "--standalone", "-m"], ["--parallel", "fsdp"]),
    ):  # fmt: skip
        command = [*launch, "pretune", "pretrain", "bert-tiny", "--data", str(text), "--out", str(tmp_path / name)]
        answer = subprocess.run([*command, *options, *more], capture_output=True, text=True, env=dict(os.environ))
        assert answer.returncode == 0, answer.stderr[-3000:]
        found[name] = [line["mlm"] for line in pt.Run(tmp_path / name).metrics() if "mlm" in line]
    assert len(found["alone"]) == STEPS
    assert found["ddp"] == pytest.approx(found["alone"], rel=1e-3)
    assert found["fsdp"] == pytest.approx(found["alone"], rel=1e-3)
