"""Locks on folders, so that two commands never write to the same one.

A lock is an `flock` on a file inside the folder: the kernel releases it when its owner ends, however that happens, and the file
says who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pretune.errors import PretuneError, quote
from pretune.progress import say

LOCK = ".lock"
_UNSUPPORTED = {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if needed, while the block runs; refuse if another process holds it.

    On a file system without locks the block runs all the same, and a warning says so.

    >>> with lock_folder(Path("/tmp/example-run")):
    ...     pass
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    handle = _acquire(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_owner()).encode(), 0)
        yield
    finally:
        if _is_current(handle, path):  # the block may have renamed or removed the folder
            path.unlink(missing_ok=True)
        os.close(handle)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(handle, 1000, 0)
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                if error.errno not in _UNSUPPORTED:
                    raise
                say(f"{path.parent}: this file system has no locks; make sure that no other command writes here")
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            raise PretuneError(
                f"{path.parent}: {_describe(owner)} is writing here; wait for it, or choose another --out"
            ) from error
        if _is_current(handle, path):  # else its last owner removed the file before we had the lock
            return handle
        os.close(handle)


def _is_current(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one that the path names."""
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
