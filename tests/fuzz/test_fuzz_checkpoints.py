"""Checkpoints that are damaged, torn or malicious."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune import PretuneError
from pretune.runtime.parsing import CHECKSUM_KEY, json_checksum
from pretune.training.checkpoints import STATE, CheckpointWriter, list_checkpoints, load_newest
from pretune.training.loop import train
from pretune.training.parallel.distributed import World
from tests.support.fuzz_harness import FEW, MANY, Kind, attack, mutate, mutate_json
from tests.support.fuzz_models import digest
from tests.support.tiny_training_cases import make

RESUMED = 8  # resumed runs
FILES = ["root.safetensors", "optimizer.safetensors", STATE]


def save(run: Path, steps: tuple[int, ...] = (20, 40)) -> None:
    """Write the checkpoints of a small run."""
    with CheckpointWriter(run, World(), keep=3) as saver:
        for step in steps:
            weights = {"a.weight": torch.full((6, 8), float(step)), "b": torch.arange(5.0) + step}
            moments = {"0/b/exp_avg": torch.arange(5.0) / step, "0/b/step": torch.tensor(float(step))}
            state = {
                "step": step,
                "clock": {"steps": float(step), "tokens": 3.0},
                "guard": {},
                "log": {"last": {}, "recent": []},
                "feed": {"position": step},
            }
            saver.start(state, {"root": weights, "optimizer": moments}, {})


def resume_digest(run: Path) -> str:
    """Return a digest of the state from which a run would resume."""
    newest = load_newest(run)
    assert newest is not None
    state, tensors = newest
    return json.dumps(state, sort_keys=True) + "".join(
        f"{kind} {digest(dict(own))}" for kind, own in sorted(tensors.items())
    )


def checkpoint(step: int, *names: str) -> list[str]:
    return [f"checkpoints/step-{step:08d}/{name}" for name in names]


def is_one_of(*steps: int) -> Callable[[str], bool]:
    """Return whether a digest is that of one of the undamaged checkpoints: an older one is a good answer, too."""
    return lambda found: any(f'"position": {step}' in found for step in steps)


KINDS = [
    Kind("the only checkpoint", lambda run: save(run, (20,)), checkpoint(20, *FILES), resume_digest, str),
    Kind("the newest of two checkpoints", save, checkpoint(40, *FILES), resume_digest, is_one_of(20, 40)),
    Kind("the oldest of two checkpoints", save, checkpoint(20, *FILES), resume_digest, str),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_checkpoints(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_checkpoints_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)


def test_an_intact_older_checkpoint_replaces_a_damaged_one(tmp_path: Path) -> None:
    save(tmp_path / "old", (20,))
    save(tmp_path / "both")
    for name in FILES:
        run = tmp_path / name
        shutil.copytree(tmp_path / "both", run)
        (list_checkpoints(run)[-1] / name).unlink()
        assert resume_digest(run) == resume_digest(tmp_path / "old")


@pytest.mark.parametrize("name", FILES)
def test_a_run_with_only_damaged_checkpoints_stops(name: str, tmp_path: Path) -> None:
    save(tmp_path)
    for folder in list_checkpoints(tmp_path):
        (folder / name).write_bytes((folder / name).read_bytes()[:-3])
    with pytest.raises(PretuneError, match="all 2 checkpoints are damaged"):
        load_newest(tmp_path)


@pytest.mark.not_fast
def test_states_with_a_valid_checksum_and_odd_values_are_refused_or_read(tmp_path: Path) -> None:
    """A checksum detects damage, but not forgery: values are checked nevertheless."""
    save(tmp_path / "good", (20,))
    for case in range(FEW // 5):
        run = tmp_path / "copy"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tmp_path / "good", run)
        path = list_checkpoints(run)[0] / STATE
        changed = change_and_reseal(path, random.Random(case))
        try:
            assert resume_digest(run)
        except PretuneError:
            pass
        except Exception as error:
            raise AssertionError(f"case {case}: {changed}") from error


def change_and_reseal(path: Path, rng: random.Random) -> str:
    """Change a value in a sealed JSON file, compute its checksum anew, and return what was changed."""
    content = json.loads(path.read_text())
    del content[CHECKSUM_KEY]
    raw, how = mutate_json(json.dumps(content).encode(), rng)
    changed: Any = json.loads(raw.decode("utf-8", "surrogatepass"))
    path.write_text(json.dumps(changed | {CHECKSUM_KEY: json_checksum(changed)}))
    return how


@pytest.mark.not_fast
def test_a_run_resumed_from_damaged_checkpoints_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Whatever happens to a checkpoint, the run resumes from an intact one with identical weights, or stops."""
    whole = make("mlm+nsp", 6, tmp_path / "whole", save=2)
    train(whole)
    expected = digest(plain(whole))
    train(make("mlm+nsp", 4, tmp_path / "good", save=2))
    assert [folder.name for folder in list_checkpoints(tmp_path / "good")] == ["step-00000002", "step-00000004"]
    for case in range(RESUMED):
        rng, run = random.Random(case), tmp_path / f"copy-{case}"
        shutil.copytree(tmp_path / "good", run)
        for folder in list_checkpoints(run)[rng.randrange(2) :]:
            target = folder / rng.choice(FILES)
            damaged, how = mutate(target.read_bytes(), rng, target.suffix)
            target.write_bytes(damaged)
        again, stopped = make("mlm+nsp", 6, run, save=2), ""
        try:
            train(again, resume=True)
        except PretuneError as error:
            stopped = str(error)
        assert "checkpoints are damaged" in stopped or digest(plain(again)) == expected, f"case {case}: {how}"


def plain(training: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in training.root.tensors().items()}
