"""Check output paths before anything is read: whether a path is free, and whether it can be written to.

Each check takes the path and the options of the call. A verb declares its check (see verbs/verb.py). Folders are locked while
the verb runs, so that no other command writes to them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from pretune.runtime.atomic_io import TEMPORARY
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.locks import lock_folder

RECIPE, RESULTS = "recipe.yaml", "results.json"  # of a run: its settings and its results
METRICS = "metrics.jsonl"  # of a run that trains
INTERMEDIATE = "intermediate"  # subfolder of a run for intermediate results

Check = Callable[[Path, Any], None]


@contextmanager
def prepare_output(path: Path, check: Check, options: Any) -> Iterator[None]:
    """Lock an output folder during the `with` block, and repeat its check once it is locked.

    `check(path, options)` raises an error if the folder must not be used; another command may have written to it since
    the first check. Output files are not locked, as they are replaced atomically. If the block raises an error, a folder
    that had to be new is new again, so that the command can be repeated, unless a model was trained in it.
    """
    # Files are replaced atomically and need no lock; of several processes of torchrun, only the first one locks.
    if check is check_new_file or os.environ.get("RANK", "0") != "0":
        yield
        return
    with lock_folder(path):
        check(path, options)  # again: another command may have written here in the meantime
        with renew_if_failed(path) if check is check_new_folder else nullcontext():
            yield


@contextmanager
def renew_if_failed(folder: Path) -> Iterator[None]:
    """Return a context manager that, if its block raises an error, removes what the block has written to a new folder.

    Intermediate results stay, as `check_new_folder` accepts them. Everything stays if a model was trained in the
    folder, which may have taken hours.
    """
    existed = folder.is_dir()
    try:
        yield
    except BaseException:  # an interrupt, too
        if any(path.relative_to(folder).parts[0] != INTERMEDIATE for path in folder.rglob(METRICS)):
            raise
        for name in _names_in(folder) - {INTERMEDIATE}:
            if (path := folder / name).is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not existed:
            with suppress(OSError):  # it has intermediate results, or was not created
                folder.rmdir()
        raise


def check_new_file(out: Path, options: Any) -> None:
    """Raise an error if the output file `out` cannot be written; an existing file is accepted and will be replaced."""
    if _kind(out) == "folder":
        raise PretuneError(f"{out} is a folder, but must be a file; give the name of a file")
    _try_to_write(out.with_name(f"{TEMPORARY}{os.getpid()}-{out.name}"), out)


def check_updated_file(out: Path, options: Any) -> None:
    """Raise an error if the file `out` cannot be written; the command reads this file, and updates it under a lock."""
    check_new_file(out, options)


def check_any_folder(out: Path, options: Any) -> None:
    """Raise an error if the output folder `out` cannot be written to; the folder may contain other files."""
    if _kind(out) == "file":
        raise PretuneError(f"{out} is a file, but must be a folder{if_option('out', '; choose another --out')}")
    _try_to_write(out / f"{TEMPORARY}{os.getpid()}", out)


def check_new_folder(out: Path, options: Any) -> None:
    """Raise an error if the output folder `out` contains files, or cannot be written to.

    Intermediate results of an earlier attempt are accepted.
    """
    check_any_folder(out, options)
    if _names_in(out) - {INTERMEDIATE}:
        raise PretuneError(f"{out} exists and is not empty{if_option('out', '; choose another --out')}")


def check_run_folder(out: Path, options: Any) -> None:
    """Raise an error if a training run can neither start nor resume in the folder `out`.

    Without the option `resume`, the folder must be new; with this option, it may also contain an unfinished run.
    """
    check_any_folder(out, options)
    if not was_restarted():  # a process that replaces a lost one continues its run
        check_run(out, options.resume)


def was_restarted() -> bool:
    """Return whether `torchrun` started this process to replace a process that was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_run(out: Path, resume: bool) -> bool:
    """Return whether the folder `out` contains an unfinished run, which is then resumed.

    Raise an error if no run can start or resume there: if the folder contains other files, a run without `resume`, or a
    finished run.
    """
    if not (out / RECIPE).is_file():
        if _names_in(out) - {INTERMEDIATE, "checkpoints"}:
            raise PretuneError(f"{out} exists and is not a run folder; choose another --out")
        return False
    if not resume:
        resuming = if_option("resume", "resume it with --resume, or ")
        raise PretuneError(f"{out} already contains a run; {resuming}choose another --out")
    if (out / RESULTS).is_file():
        raise PretuneError(f"{out}: the run in this folder is already finished; choose another --out")
    return True


def intermediate_folder(out: Path, name: str) -> Path:
    """Return the folder inside `out` for the intermediate result `name`; delete what an earlier attempt left there."""
    folder = out / INTERMEDIATE / name
    if folder.is_dir():
        shutil.rmtree(folder)
    return folder


def check_resumable_folder(marker: str, what: str) -> Check:
    """Return a check for output folders: it accepts only an empty folder, or one that contains the file `marker`.

    Errors say that the folder is not `what`, such as "a study".
    """

    def check(out: Path, options: Any) -> None:
        check_any_folder(out, options)
        if _names_in(out) and not (out / marker).is_file():
            raise PretuneError(f"{out} exists and is not {what}; choose another --out")

    return check


def _names_in(folder: Path) -> set[str]:
    """Return the names of the files and folders in a folder, apart from temporary ones that a killed process left."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.startswith(TEMPORARY)}


def _kind(path: Path) -> str:
    """Return "folder" or "file" for an existing path, and "" for one that does not exist."""
    try:
        return "folder" if S_ISDIR(path.stat().st_mode) else "file"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:  # such as a name that is too long
        raise _no_access(path, error) from error


def _try_to_write(file: Path, out: Path) -> None:
    """Create a file and the folders on its path, and remove them, to find permission problems before hours of work.

    Errors name `out`, the output that the user asked for.
    """
    if os.environ.get("RANK", "0") != "0":  # only the first process of torchrun checks
        return
    made: list[Path] = []
    try:
        made = [folder for folder in file.parents if not folder.exists()]  # innermost first
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.unlink()
    except OSError as error:
        raise _no_access(out, error) from error
    finally:
        for folder in made:
            with suppress(OSError):  # it may not have been created
                folder.rmdir()


def _no_access(out: Path, error: OSError) -> PretuneError:
    reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror  # a parent is a file
    return PretuneError(f"{str(out)[:200]}: cannot be written ({reason}){if_option('out', '; choose another --out')}")
