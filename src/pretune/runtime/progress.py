"""Show progress on stderr: a bar on a terminal, a line every few seconds otherwise, nothing on request."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from pretune.runtime.errors import LONGEST_MESSAGE, make_printable, shorten

PROGRESS = "PRETUNE_PROGRESS"  # environment variable; "none" turns output off
PLAIN_EVERY = 5.0  # seconds between lines if stderr is not a terminal
Result = TypeVar("Result")
_QUIET = ContextVar("quiet", default=False)


class ProgressBar(Protocol):
    """A protocol for progress indicators, which show how much of a long-running task is done."""

    def update(self, done: float, note: str = "") -> None:
        """Show that `done` of the total units of work are finished, with an optional note."""


def is_silent() -> bool:
    """Return whether progress output is off.

    This is so if the environment variable PRETUNE_PROGRESS is "none", and in all processes of `torchrun` except the
    first.
    """
    return _QUIET.get() or os.environ.get(PROGRESS) == "none" or os.environ.get("RANK", "0") != "0"


@contextmanager
def quiet() -> Iterator[None]:
    """Turn progress output off while the `with` block runs, for one of many parts of a larger job."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def log_info(line: str) -> None:
    """Print a line on stderr, unless progress output is off.

    Long lines are shortened, and control characters are replaced by spaces.
    """
    if not is_silent():
        lines = (shorten(make_printable(part), LONGEST_MESSAGE) for part in line.split("\n"))
        print("\n".join(lines), file=sys.stderr, flush=True)


def stream_text(pieces: Generator[str, None, Result]) -> Result:
    """Print the texts that a generator yields to stderr as they arrive, and return the return value of the generator.

    If progress output is off, nothing is printed.
    """
    off = os.environ.get(PROGRESS) == "none"
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            log_info("")
            result: Result = end.value
            return result
        if not off:
            print(piece, end="", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[ProgressBar]:
    """Show a progress bar on a terminal, or progress lines elsewhere, while the block runs.

    >>> with progress("counting", total=3) as bar:
    ...     for i in range(3):
    ...         bar.update(i + 1, note="words")
    """
    if is_silent():
        yield SilentProgress()
    elif sys.stderr.isatty():
        with _rich_bar(title, total) as bar:
            yield bar
    else:
        bar = _PlainProgress(title, total)
        yield bar
        bar.finish()


class SilentProgress:
    """A progress indicator that shows nothing."""

    def update(self, done: float, note: str = "") -> None:
        """Do nothing, because this progress indicator is silent."""


class _PlainProgress:
    """A progress indicator that prints a line every few seconds, for output that is not a terminal."""

    def __init__(self, title: str, total: float | None) -> None:
        self.title, self.total, self.note = title, total, ""
        self.start = self.shown = time.monotonic()
        self.printed = False

    def update(self, done: float, note: str = "") -> None:
        self.note = note
        now = time.monotonic()
        if now - self.shown >= PLAIN_EVERY:
            self.shown = now
            self._print(done, now)

    def _print(self, done: float, now: float) -> None:
        self.printed = True
        parts = [self.title]
        if self.total:
            share = min(done / self.total, 1.0)
            left = (now - self.start) * (1 - share) / share if share > 0 else float("inf")
            parts += [f"{100 * share:.0f} %", f"{left:.0f} s left" if left != float("inf") else "starting"]
        log_info("  ".join([*parts, self.note]).rstrip())

    def finish(self) -> None:
        if self.printed:  # short jobs stay silent
            log_info(f"{self.title}  done in {time.monotonic() - self.start:.0f} s  {self.note}".rstrip())


@contextmanager
def _rich_bar(title: str, total: float | None) -> Iterator[ProgressBar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as display:
        task = display.add_task(title, total=total, note="")

        class _Rich:
            def update(self, done: float, note: str = "") -> None:
                display.update(task, completed=done, note=note)

        yield _Rich()
