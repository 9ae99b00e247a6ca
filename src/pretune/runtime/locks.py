"""Lock folders, so that two commands never write to the same one.

A lock is an `flock` on a hidden file beside the folder: the kernel releases it when its owner ends, for whatever reason, and
the file names the owner.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

from pretune.runtime.errors import PretuneError, if_option, quote
from pretune.runtime.progress import log_info

LONGEST_NAME = 200  # bytes; file systems allow 255
_UNSUPPORTED = {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())  # by this thread; calls may be nested


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, which need not exist yet, while the `with` block runs.

    If another process has locked it, raise an error. On a file system without locks, the block runs without a lock,
    after a warning.

    >>> with lock_folder(Path("runs/example")):
    ...     pass
    """
    folder = folder.resolve()
    if folder in _HELD.get():
        yield
        return
    created = [parent for parent in folder.parents if not parent.exists()]  # innermost first
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        path = lock_file(folder)
        handle = _acquire(path, folder)
    except OSError as error:
        advice = if_option("out", "; choose another --out")
        raise PretuneError(f"{folder}: cannot be locked ({error.strerror}){advice}") from error
    before = _HELD.set(_HELD.get() | {folder})
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_owner()).encode(), 0)
        yield
    finally:
        _HELD.reset(before)
        if _is_current(handle, path):  # unless the block has removed the file
            path.unlink(missing_ok=True)
        os.close(handle)
        for parent in created:
            with suppress(OSError):  # not empty
                parent.rmdir()


def lock_file(folder: Path) -> Path:
    """Return the lock file of a folder: beside the folder, or inside it if the parent folder cannot be written to."""
    if folder.is_dir() and not os.access(folder.parent, os.W_OK):
        return folder / ".lock"
    name = folder.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return folder.with_name(f".{name}.lock")


def _acquire(path: Path, folder: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(handle, 1000, 0)
            if error.errno in _UNSUPPORTED:
                log_info(f"{folder}: the file system has no locks; make sure that no other command writes here")
                return handle
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            advice = if_option("out", ", or choose another --out")
            raise PretuneError(f"{folder}: {_describe(owner)} is writing here; wait until it ends{advice}") from error
        if _is_current(handle, path):  # otherwise its last owner removed the file before we had the lock
            return handle
        os.close(handle)


def _is_current(handle: int, path: Path) -> bool:
    """Return whether the file descriptor `handle` and `path` still refer to the same file; it may have been replaced."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _owner() -> dict[str, object]:
    command = " ".join(Path(argument).name for argument in sys.argv[:2])
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "command": command, "since": since}


def _describe(owner: bytes) -> str:
    try:
        content = json.loads(owner)
        return f"process {int(content['process'])} on {quote(str(content['host']))} ({content['command']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
