"""Atomic file writes: a file appears whole or not at all (temporary name, fsync, rename).

Temporary files have random names and are created with O_EXCL and O_NOFOLLOW, so that a link planted in a shared folder is
never followed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pretune.runtime.errors import PretuneError, quote

TEMPORARY = ".tmp-"  # prefix of temporary names, which a finished folder never contains
LONGEST_NAME = 255  # bytes that most file systems allow
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing under a temporary name; it gets its name only if the block ends without an error.

    >>> with atomic_file(Path("/tmp/example.bin")) as file:
    ...     _ = file.write(b"all or nothing")
    """
    check_file_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(TEMPORARY + secrets.token_hex(12))
    try:
        with create_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise PretuneError(
                f"{path}: cannot be written ({error.strerror}); free some space and run the command again"
            ) from error
        raise
    sync_folder(path.parent)


def create_file(path: Path) -> IO[bytes]:
    """Open a new file for writing; fail if anything has that name already, a link included."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb")


def open_append(path: Path) -> IO[bytes]:
    """Open a file to append to it; fail if it is a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "ab")


def temporary_folder(final: Path) -> Path:
    """Create an empty folder with a random temporary name beside `final`, to be renamed to it when it is complete."""
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = final.with_name(TEMPORARY + secrets.token_hex(12))
    folder.mkdir()
    return folder


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with atomic_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, indented and byte-stable."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def check_file_name(path: Path) -> None:
    """Raise an error for a file or folder name that file systems do not allow."""
    for part in path.parts:
        if len(os.fsencode(part)) > LONGEST_NAME or "\0" in part:
            raise PretuneError(f"{quote(part)} is not a valid file name (at most {LONGEST_NAME} bytes); choose another")


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that renames in it survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically from the view of readers.

    It is renamed before it is deleted. On NFS, files that are open elsewhere prevent the deletion of a folder; what is left has
    a temporary name, and `remove_temporaries` tries again.
    """
    doomed = folder.with_name(f"{TEMPORARY}removed-{secrets.token_hex(8)}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files that a killed process left behind; only the holder of the folder's lock may call this."""
    for leftover in folder.glob(TEMPORARY + "*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
