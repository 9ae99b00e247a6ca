"""Checks of `--out`, made before anything is read: is the place free, and can it be written to?

Each check takes the path and the options of the call. A verb names the check that fits it (see verbs/verb.py). Folders are locked
while the verb runs, so that no other command writes to them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from pretune.runtime.atomic_io import TEMPORARY
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.locks import lock_folder

RECIPE, RESULTS = "recipe.yaml", "results.json"  # of a run: how it was made, and what came out
INTERMEDIATE = "intermediate"  # subfolder of a run for what it was made from

Check = Callable[[Path, Any], None]


@contextmanager
def output(path: Path, check: Check, options: Any) -> Iterator[None]:
    """Check an output, and hold the lock of a folder while the block runs."""
    if (
        check is new_file or os.environ.get("RANK", "0") != "0"
    ):  # files are replaced whole; of several processes one locks
        yield
        return
    with lock_folder(path):
        check(path, options)  # again: another command may have written here since
        yield


def new_file(out: Path, options: Any) -> None:
    """Check a file, which is replaced where it exists."""
    if _kind(out) == "folder":
        raise PretuneError(f"{out}: is a folder; name a file")
    _try_to_write(out.with_name(f"{TEMPORARY}{os.getpid()}-{out.name}"), out)


def any_folder(out: Path, options: Any) -> None:
    """Check a folder that may hold other files."""
    if _kind(out) == "file":
        raise PretuneError(f"{out}: is a file; choose another --out")
    _try_to_write(out / f"{TEMPORARY}{os.getpid()}", out)


def new_folder(out: Path, options: Any) -> None:
    """Check a folder that must not exist yet, or be empty; the intermediate results of an earlier attempt may be in it."""
    any_folder(out, options)
    if _holds(out) - {INTERMEDIATE}:
        raise PretuneError(f"{out}: exists and is not empty; choose another --out")


def run_folder(out: Path, options: Any) -> None:
    """Check a new folder of a run, or, with `resume`, one whose run has not finished."""
    from pretune.training.parallel.distributed import restarted

    any_folder(out, options)
    if not restarted():  # a process that replaces a lost one goes on with what the others have
        check_run(out, options.resume)


def check_run(out: Path, resume: bool) -> bool:
    """Refuse a folder that no run can be started or resumed in, and return whether it holds an unfinished run."""
    if not (out / RECIPE).is_file():
        if _holds(out) - {INTERMEDIATE, "checkpoints"}:
            raise PretuneError(f"{out}: exists and is not a run; choose another --out")
        return False
    if not resume:
        raise PretuneError(
            f"{out}: already holds a run; {if_option('resume', 'go on with --resume, or ')}choose another --out"
        )
    if (out / RESULTS).is_file():
        raise PretuneError(f"{out}: this run is finished; choose another --out")
    return True


def intermediate(out: Path, name: str) -> Path:
    """Return the folder of an intermediate result of a run, without what an earlier attempt left there."""
    folder = out / INTERMEDIATE / name
    if folder.is_dir():
        shutil.rmtree(folder)
    return folder


def folder_of(mark: str, what: str) -> Check:
    """Make the check of a folder that the same command goes on with: new, empty, or holding the file `mark`."""

    def check(out: Path, options: Any) -> None:
        any_folder(out, options)
        if _holds(out) and not (out / mark).is_file():
            raise PretuneError(f"{out}: exists and is not {what}; choose another --out")

    return check


def _holds(folder: Path) -> set[str]:
    """Return the names in a folder, without what a killed process left half-written."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.startswith(TEMPORARY)}


def _kind(path: Path) -> str:
    """Return what a path is: folder, file, or "" where there is nothing."""
    try:
        return "folder" if S_ISDIR(path.stat().st_mode) else "file"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:  # such as a name that is too long
        raise _no_access(path, error) from error


def _try_to_write(file: Path, out: Path) -> None:
    """Create a file and its folders, and remove them again: what stands in the way is found before hours of work."""
    if os.environ.get("RANK", "0") != "0":  # of the processes that torchrun started, one checks
        return
    made: list[Path] = []
    try:
        made = [folder for folder in file.parents if not folder.exists()]  # the innermost first
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.unlink()
    except OSError as error:
        raise _no_access(out, error) from error
    finally:
        for folder in made:
            with suppress(OSError):  # one that could not be made
                folder.rmdir()


def _no_access(out: Path, error: OSError) -> PretuneError:
    reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror  # where a parent is a file
    return PretuneError(f"{str(out)[:200]}: cannot be written ({reason}){if_option('out', '; choose another --out')}")
