"""Faults of the machine: full disks, deleted folders, clock jumps, out of memory, failing threads."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError, cli
from pretune.runtime.atomic_io import TEMPORARY, remove_folder, remove_temporaries
from pretune.training import checkpoints
from pretune.training.budget import Clock
from pretune.training.parallel.distributed import World
from pretune.training.prefetch import Prefetcher
from pretune.training.recipe_sections import Budget
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained, tune

FEW: dict[str, Any] = {"budget": pt.Budget(steps=2), "monitor": pt.Monitoring(save_every=1, held_out_fraction=0.0)}
SHORT: dict[str, Any] = {"batch": pt.Batching(tokens=64, max_length=16), **FEW}


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """Limit the size of files, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def text() -> Path:
    return start() / "text.txt"


def rows() -> Path:
    return start() / "train.csv"


# Every verb that writes → the call, and the limit on file sizes.
WRITERS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "tokenizer train": (lambda out: pt.train_tokenizer(text(), vocab_size=100, out=out), 1000),
    "prepare": (lambda out: pt.prepare(text(), start() / "start", out, processes=1), 1000),
    "pretrain": (lambda out: pt.pretrain("bert-tiny", text(), objective="mlm", tokenizer=start() / "start", out=out, **SHORT), 20_000),
    "adapt": (lambda out: pt.adapt(start() / "start", text(), out=out, **SHORT), 20_000),
    "finetune": (lambda out: tune(out, steps=2, monitor=pt.Monitoring(save_every=1)), 20_000),
    "prune": (lambda out: pt.prune(trained(), heads=0.5, out=out), 20_000),
    "quantize": (lambda out: pt.quantize(trained(), method="bf16", out=out), 20_000),
    "distill": (lambda out: pt.distill(trained(), student="layers=2", train=rows(), out=out, epochs=0.1), 20_000),
    "export": (lambda out: pt.export(trained(), out=out), 20_000),
    "export --format onnx": (lambda out: pt.export(trained(), format="onnx", out=out), 20_000),
    "predict": (lambda out: pt.predict(trained(), rows(), out=out / "answers.csv"), 1000),
    "embed": (lambda out: pt.embed(trained(), rows(), out=out / "vectors.npy"), 1000),
}  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("verb", WRITERS)
def test_a_full_disk_is_reported_and_leaves_no_partial_files(verb: str, tmp_path: Path) -> None:
    """The error is one line, no partial file has its final name, and the same command succeeds once there is space."""
    act, limit = WRITERS[verb]
    trained()
    with small_disk(limit), pytest.raises((PretuneError, OSError)) as failure:
        act(tmp_path / "out")
    message = str(failure.value)
    assert (
        "cannot be written (File too large); free some space" in message
        or getattr(failure.value, "errno", 0) in cli.FILE_ERRORS
    ), message
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(TEMPORARY)]
    assert not [path for path in tmp_path.rglob("*.safetensors") if path.stat().st_size >= limit]
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)
    act(tmp_path / "out")


def test_a_deleted_run_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder is deleted during training: the error is one line, whatever was being written."""
    out = tmp_path / "run"
    begin = checkpoints.CheckpointWriter._begin

    def vanish(self: Any) -> None:
        begin(self)
        shutil.rmtree(out)

    monkeypatch.setattr(checkpoints.CheckpointWriter, "_begin", vanish)
    with pytest.raises((PretuneError, OSError)) as failure:
        tune(out, steps=4, monitor=pt.Monitoring(save_every=1))
    assert isinstance(failure.value, PretuneError) or failure.value.errno in cli.FILE_ERRORS


def test_the_command_line_reports_deleted_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "runs/mine/metrics.jsonl")

    monkeypatch.setattr(cli, "make_app", lambda: vanish)
    refused = run_command("show", "presets", check=False)
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: runs/mine/metrics.jsonl: No such file or directory; was it removed while the command ran?\n"
    )


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "the GPU"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"), "this machine"),
        (MemoryError(), "this machine"),
    ],
)  # fmt: skip
def test_out_of_memory_is_reported_in_one_line(error: Exception, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "make_app", lambda: fail)
    refused = run_command("finetune", check=False)
    message = refused.stderr
    assert refused.returncode == 1
    assert message.startswith(f"error: {place} is out of memory; ") and message.count("\n") == 1
    assert "batch.microbatch_tokens" in message and "batch.size" in message and "batch.max_length" in message


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "make_app", lambda: fail)
    with pytest.raises(RuntimeError, match="a defect"):
        run_command("finetune")


def test_clock_jumps_never_block_training() -> None:
    """After suspend, or if the clock is set, training ends early or continues, but never waits."""
    times = iter([0.0, 1.0, 2.0, 3602.0])
    clock = Clock(Budget(seconds=100), now=lambda: next(times))
    for _ in range(2):
        clock.add(10, 10, clock.elapsed())
        assert not clock.spent
    clock.add(10, 10, clock.elapsed())
    assert clock.spent and clock.progress() == 1.0
    times = iter([50.0, 51.0, 20.0, 21.0])  # set back
    clock = Clock(Budget(seconds=100, steps=3), now=lambda: next(times))
    for _ in range(3):
        clock.add(10, 10, clock.elapsed())
    assert clock.spent  # by its number of steps


def test_a_failing_prefetch_thread_ends_training() -> None:
    """The error is raised where the batch is awaited; nothing waits forever."""

    class Broken:
        def state(self) -> dict[str, int]:
            return {"epoch": 0}

        def restore(self, state: dict[str, int]) -> None:
            assert state == {"epoch": 0}

        def take(self, *_: object, **__: object) -> Any:
            raise OSError(errno.EIO, "Input/output error", "store/00000.safetensors")

        def __getattr__(self, name: str) -> Any:
            return self.take

    clock = Clock(Budget(steps=3))
    with Prefetcher(Broken(), World(), clock, ahead=True, pinned=False) as feed:  # type: ignore[arg-type]
        feed.prefetch_next()
        with pytest.raises(OSError, match="Input/output error"):
            feed.next(clock)


def test_folders_that_cannot_be_deleted_yet_are_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, files that are open elsewhere keep a folder alive; it must disappear under its name nevertheless."""
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "state.json").write_text("{}")
    remove = shutil.rmtree

    def busy(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))

    monkeypatch.setattr(shutil, "rmtree", busy)
    remove_folder(tmp_path / "step-1")
    assert not (tmp_path / "step-1").exists() and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(shutil, "rmtree", remove)
    remove_temporaries(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.not_fast
def test_a_run_on_a_file_system_with_delayed_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old checkpoints that cannot be deleted do not end training."""
    remove = shutil.rmtree

    def busy(folder: Any, ignore_errors: bool = False, **_: Any) -> None:
        if not ignore_errors and "step-" in str(folder):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))
        if "step-" not in str(folder):
            remove(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", busy)
    run = tune(tmp_path / "run", steps=6, monitor=pt.Monitoring(save_every=1, save_total_limit=1))
    assert run.finished and len(checkpoints.list_checkpoints(run.folder)) <= 1
