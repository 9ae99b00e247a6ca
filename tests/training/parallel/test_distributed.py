"""Tests of several processes: losses equal to one process, resuming with another number, and clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune
from pretune.training import checkpoints
from pretune.training.checkpoints import list_checkpoints
from pretune.training.loop import train
from pretune.training.recipe_sections import Batching, Budget, Monitoring
from tests.support.paths import ROOT
from tests.support.tiny_training_cases import make

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run all scenarios of forked_processes.py and return their folder and results."""
    folder = tmp_path_factory.mktemp("together")
    path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    answer = subprocess.run(
        [sys.executable, "-m", "tests.support.forked_processes", str(folder)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    errors = "\n".join(file.read_text()[-1500:] for file in sorted(folder.rglob("errors-*")))
    assert answer.returncode == 0, answer.stderr[-3000:] + errors
    return folder, json.loads(answer.stdout.splitlines()[-1])


def test_losses_do_not_depend_on_the_number_of_processes(scenarios: tuple[Path, dict[str, Any]]) -> None:
    """Covers replicas and shards, dropout, packs that cannot be split evenly, and optimizers that need whole matrices."""
    folder, found = scenarios[0] / "same", scenarios[1]["same"]
    for size in ("2", "3"):
        assert found[size] is not None, (folder / size / "errors-0").read_text()
        for name, losses in found[size].items():
            tolerance = 1e-3 if name.startswith("bf16") else 1e-6
            assert losses == pytest.approx(found["1"][name], rel=tolerance), (size, name)
    assert found["2"]["bf16"] != found["2"]["sharded"]  # rounding has an effect
    # Two steps of two packs per process: gradients, of all or of the rest and two layers, are reduced once per step.
    assert found["exchanged"] == {"ddp": 2, "fsdp": 6}


def test_runs_resume_with_another_number_of_processes(scenarios: tuple[Path, dict[str, Any]]) -> None:
    folder, found = scenarios[0] / "resumed", scenarios[1]["resumed"]
    assert set(found["errors"]) == {""}
    assert_same(folder, "whole", "two, then one", "one, then three", "replicas, then shards", "full")
    assert_same(folder, "lane", "lanes")
    names = {path.name for path in list_checkpoints(folder / "replicas, then shards" / "run")[-1].iterdir()}
    kinds = ("average", "optimizer", "root")
    assert names == {"state.json", *(f"{kind}-0000{rank}-of-00002.safetensors" for kind in kinds for rank in range(2))}
    # One process had no disk space: it reports this, the others end too, and the previous checkpoint remains.
    others, errors = found["full"]
    assert others == "SystemExit: 1"
    assert "root-00001-of-00002.safetensors: cannot be written (File too large); free some space" in errors
    assert found["left"] == ["step-00000002"]


def assert_same(folder: Path, first: str, *others: str) -> None:
    def losses(way: str) -> list[float]:
        lines = map(json.loads, (folder / way / "run" / "metrics.jsonl").read_text().splitlines())
        return [line.get("mlm", line.get("lm")) for line in lines]

    expected = load_file(folder / first / "run" / "final.safetensors")
    for way in others:
        assert losses(way) == pytest.approx(losses(first), rel=1e-5), way
        for name, tensor in load_file(folder / way / "run" / "final.safetensors").items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=1e-3, msg=f"{way}: {name}")


def test_disagreeing_processes_are_reported(scenarios: tuple[Path, dict[str, Any]]) -> None:
    folder, found = scenarios[0] / "disagreeing", scenarios[1]["disagreeing"]
    errors = {name: messages for name, (messages, other) in found.items() if other == "SystemExit: 1"}
    assert errors.keys() == found.keys()  # one of them reports the error, and both end
    assert "the recipe of process 1" in errors["recipe"] and "in optimizer.lr, seed;" in errors["recipe"]
    assert "the data of process 1" in errors["data"] and "in documents, store;" in errors["data"]
    assert "run: process 1" in errors["folder"] and "must be a folder that all machines share" in errors["folder"]
    assert not (folder / "machine-0" / "run").exists()
    assert "nothing-here" in errors["first"]


def pretrain_with_killed_workers(
    tmp_path: Path, english: list[str], steps: int, restarts: int, *more: str, **places: str
) -> str:
    """Pretrain in one process, and from the command line in two that are killed; compare and return the messages."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(part.split()) for part in english[:20]), encoding="utf-8")
    expected = pretune.pretrain(
        "bert-tiny", text, out=tmp_path / "alone", budget=Budget(steps=steps),
        batch=Batching(tokens=512, microbatch_tokens=128, max_length=64), monitor=Monitoring(log_every=1, save_every=2),
        tokenizer={"kind": "wordpiece", "vocab_size": 400},
    )  # fmt: skip
    recipe = tmp_path / "alone" / "recipe.yaml"
    launch = ["--nproc-per-node", "2", "--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    answer = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", *launch, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            str(ROOT / "tests" / "support" / "lost_worker.py"), "pretrain", "--recipe", str(recipe), "--out", str(tmp_path / "lost"),
            "--json", *more,
        ],
        capture_output=True, text=True, check=False, env={**os.environ, "PRETUNE_PROGRESS": "", **places},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert json.loads(answer.stdout.splitlines()[-1])["finished"]  # printed by one process only
    assert len(answer.stdout.splitlines()) == 1
    found, wanted = (
        [line.get("mlm", line.get("dev/mlm")) for line in pretune.Run(run).metrics()]
        for run in (tmp_path / "lost", expected)
    )
    assert found == pytest.approx(wanted, rel=1e-5)
    mine, theirs = (load_file(run / "model.safetensors") for run in (tmp_path / "lost", expected.folder))
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
    return answer.stderr


def test_torchrun_survives_the_loss_of_a_worker(tmp_path: Path, english: list[str]) -> None:
    """The command line works unchanged from a text file: a worker is killed in the middle of a step, and all resume."""
    messages = pretrain_with_killed_workers(tmp_path, english, steps=8, restarts=1)
    assert "(exitcode: -9) local_rank: 1" in messages and "resuming from step" in messages


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_workers_killed_at_ten_random_moments(parallel: str, tmp_path: Path, english: list[str]) -> None:
    seed = int.from_bytes(os.urandom(3), "little")
    print("seed", seed)  # pytest shows it when the test fails
    messages = pretrain_with_killed_workers(tmp_path, english, 60, 10, "--parallel", parallel, KILLS=f"10,{seed}")
    assert messages.count("(exitcode: -9)") >= 3 and messages.count("resuming from step") >= 3


def test_checkpoints_are_written_while_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = threading.Event()
    save = checkpoints.save

    def slow(tensors: dict[str, torch.Tensor]) -> bytes:
        assert later.wait(10), "the training waits for its checkpoint"
        return save(tensors)

    monkeypatch.setattr(checkpoints, "save", slow)
    training = make("mlm+nsp", 6, tmp_path, save=2)
    training.evaluate = lambda: {"seen": float(later.set() is None)}
    training.monitor = replace(training.monitor, eval_every=3)
    train(training)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004", "step-00000006"]
