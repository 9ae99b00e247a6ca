"""Locks on folders: one writer at a time, whoever dies."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pretune.errors import PretuneError
from pretune.locks import LOCK, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from pretune.locks import lock_folder
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


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    other = hold(tmp_path / "run")
    try:
        with (
            pytest.raises(PretuneError, match=rf"process {other.pid} on .* is writing here"),
            lock_folder(tmp_path / "run"),
        ):
            pass
    finally:
        other.communicate("")
    with lock_folder(tmp_path / "run"):  # it ended well
        pass
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_killed_owner_holds_nothing(tmp_path: Path) -> None:
    other = hold(tmp_path / "run")
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert (tmp_path / "run" / LOCK).exists()
    with lock_folder(tmp_path / "run"):
        pass


def test_a_folder_that_is_renamed_while_it_is_locked_keeps_no_lock_of_a_stranger(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "store.partial"):
        (tmp_path / "store.partial").rename(tmp_path / "store")
        with lock_folder(tmp_path / "store.partial"):
            pass
    assert not (tmp_path / "store.partial" / LOCK).exists()


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    with lock_folder(tmp_path):
        pass
    assert "has no locks" in capsys.readouterr().err


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"), lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "target").read_text() == "precious"
