"""Start a script in a process that outlives its caller, with a copy of the code, and find out whether it still runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PID, LOG = "pid", "run.log"


def start_detached(
    home: Path, script: str, words: Sequence[str], folders: Sequence[str] = ("src", "perf", "script")
) -> None:
    """Run a script of this folder with the arguments `words`, in the folder `home`, in a process that outlives this one.

    The code and other `folders` of the repository are copied into `home`, so that the process does not depend on them.
    """
    if is_running(home):
        sys.exit(f"{home}: already started; see `{script} follow`.")
    code = home / "code"
    home.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(code, ignore_errors=True)
    for name in folders:
        shutil.copytree(HERE.parent / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    others = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    path = os.pathsep.join([str(code / "src"), *others])
    with (home / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(code / "perf" / script), *words], stdout=log, stderr=subprocess.STDOUT, cwd=home,
            env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
    (home / PID).write_text(str(process.pid), encoding="utf-8")
    print(f"{home}: started", flush=True)


def is_running(home: Path) -> bool:
    """Return whether the process that `start_detached` has started still runs."""
    file = home / PID
    if not file.is_file():
        return False
    number = int(file.read_text(encoding="utf-8"))
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{number}/stat")  # a process that nobody has waited for is a zombie after its end
    return not status.is_file() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
