"""Tests of locks on folders: one writer at a time, even if processes are killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pretune as pt
from pretune.runtime.errors import PretuneError
from pretune.runtime.locks import lock_file, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from pretune.runtime.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_second_process_is_rejected_and_the_owner_is_reported(tmp_path: Path) -> None:
    other = hold(tmp_path / "run")
    try:
        with (
            pytest.raises(PretuneError, match=rf"process {other.pid} on .* is writing here"),
            lock_folder(tmp_path / "run"),
        ):
            pass
    finally:
        other.communicate("")
    with lock_folder(tmp_path / "run"):  # it ended normally
        pass
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    other = hold(tmp_path / "run")
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert lock_file(tmp_path / "run").exists()
    with lock_folder(tmp_path / "run"):
        pass


def test_locked_folders_may_be_created_and_removed(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "a" / "store"):
        (tmp_path / "a" / "store.partial").mkdir()
        (tmp_path / "a" / "store.partial").rename(tmp_path / "a" / "store")
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "store"]
    with lock_folder(tmp_path / "b" / "c" / "run"):
        pass
    assert not (tmp_path / "b").exists()  # nothing was written there


def test_locks_are_reentrant_within_a_thread_and_exclude_other_threads(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "other-name").symlink_to(tmp_path / "run")
    found: list[str] = []

    def try_it() -> None:
        try:
            with lock_folder(tmp_path / "other-name"):
                found.append("held")
        except PretuneError as error:
            found.append(str(error))

    with lock_folder(tmp_path / "run"):
        with lock_folder(tmp_path / "other-name"):
            pass
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert len(found) == 1 and "is writing here" in found[0]
    try_it()
    assert found[1:] == ["held"]


def test_long_names_and_read_only_parents_are_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_folder(tmp_path / ("ä" * 120)):
        pass
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert lock_file(tmp_path / "run") == tmp_path / "run" / ".lock"


@pytest.mark.not_fast
def test_second_command_on_a_folder_is_rejected(tmp_path: Path) -> None:
    """It is rejected before it changes anything, and works once the first has ended, even if that was killed."""
    (tmp_path / "text.txt").write_text("A text of a few words.\n" * 20)
    tokenizer = pt.train_tokenizer(tmp_path / "text.txt", vocab_size=60, out=tmp_path / "tokenizer")
    other = hold(tmp_path / "store")
    try:
        with pytest.raises(
            PretuneError, match=rf"process {other.pid} .* is writing here; wait until it ends, or choose another --out"
        ):
            pt.prepare(tmp_path / "text.txt", tokenizer, tmp_path / "store")
        assert not (tmp_path / "store").exists() and not (tmp_path / "store.partial").exists()
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert pt.prepare(tmp_path / "text.txt", tokenizer, tmp_path / "store").tokens
    assert not lock_file(tmp_path / "store").exists()


def test_output_that_appeared_while_waiting_for_the_lock_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commands found the folder free; the one that gets the lock later finds the output of the first."""

    @contextmanager
    def late(folder: Path) -> Iterator[None]:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        yield

    monkeypatch.setattr("pretune.runtime.output_paths.lock_folder", late)
    with pytest.raises(PretuneError, match="exists and is not empty"):
        pt.export("pretune-small-en", out=tmp_path / "out")


def test_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    with lock_folder(tmp_path):
        pass
    assert "has no locks" in capsys.readouterr().err


def test_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    lock_file(tmp_path / "run").symlink_to(tmp_path / "target")
    with pytest.raises(PretuneError, match="cannot be locked"), lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "target").read_text() == "precious"
