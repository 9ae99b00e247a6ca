"""Run the command line: in this process, which is faster, or in a separate one."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from pretune import cli

COMMAND = [sys.executable, "-m", "pretune"]


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """Return the output of a command with `--json`."""
        return dict(json.loads(self.stdout))


def run_command(*arguments: object, check: bool = True) -> CommandResult:
    """Run a command in this process; with `check`, fail unless it succeeds.

    >>> run_command("show", "presets", "--json").json().keys()
    dict_keys(['presets'])
    """
    words = [str(argument) for argument in arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    assert code == 0 or not check, f"pretune {shlex.join(words)}: {err.getvalue()}"
    return CommandResult(code, out.getvalue(), err.getvalue())


def run_line(line: str, *more: str) -> CommandResult:
    """Run a line of a page that begins with `pretune`, with more options, in this process."""
    program, *words = shlex.split(line)
    assert program == "pretune", line
    return run_command(*words, *more)


def run_process(*arguments: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process; the options are those of `subprocess.run`."""
    words = [str(argument) for argument in arguments]
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=check, **options)
