"""Write files atomically: a file appears whole or not at all (temporary name, fsync, rename).

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
    """Open a file for writing under a temporary name, and rename it to `path` when the `with` block ends.

    If the block raises an error, the temporary file is deleted, and a file at `path` stays unchanged.

    >>> with atomic_file(Path("example.bin")) as file:
    ...     _ = file.write(b"all or nothing")
    """
    check_file_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(TEMPORARY + secrets.token_hex(12))
    try:
        with _open(temporary, os.O_EXCL, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            advice = "free some space and run the command again"
            raise PretuneError(f"{path}: cannot be written ({error.strerror}); {advice}") from error
        raise
    sync_folder(path.parent)


def open_append(path: Path) -> IO[bytes]:
    """Open a file to append to it; raise an OSError if the path is a symbolic link."""
    return _open(path, os.O_APPEND, "ab")


def _open(path: Path, flag: int, mode: str) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flag, 0o666), mode)


def temporary_folder(final: Path) -> Path:
    """Create an empty folder with a random temporary name beside `final`, and return its path.

    The caller renames the folder to `final` when its contents are complete.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = final.with_name(TEMPORARY + secrets.token_hex(12))
    folder.mkdir()
    return folder


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes to a file atomically: the file appears whole or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write a value to a JSON file atomically, with indentation; equal values give equal bytes."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def check_file_name(path: Path) -> None:
    """Raise an error if a part of a path is too long for a file name, or contains a null byte."""
    for part in path.parts:
        if len(os.fsencode(part)) > LONGEST_NAME or "\0" in part:
            raise PretuneError(
                f"{quote(part)} is not a valid file name (at most {LONGEST_NAME} bytes); choose another name"
            )


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that files renamed in it keep their new names after a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Delete a folder; it is first renamed to a temporary name, so that readers never find it incomplete.

    On NFS, a folder with files that other programs have open cannot be deleted; `remove_temporaries` deletes it later.
    """
    doomed = folder.with_name(f"{TEMPORARY}removed-{secrets.token_hex(8)}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files and folders that killed processes left in a folder; the caller must have locked it."""
    for leftover in folder.glob(TEMPORARY + "*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
