"""What pretune says when something is wrong with the input, not with pretune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

_options: ContextVar[frozenset[str] | None] = ContextVar("options", default=None)  # of the running command


class PretuneError(Exception):
    """One line for people: what is wrong, where, and what to do. The command line prints it without a traceback."""


@contextmanager
def running_with(options: Iterable[str]) -> Iterator[None]:
    """Let messages inside the block name these options of the command line alone."""
    token = _options.set(frozenset(options))
    try:
        yield
    finally:
        _options.reset(token)


def if_option(option: str, advice: str) -> str:
    """Return advice that names an option, or "" where the running command does not have that option.

    For messages of code that commands share. Called from Python, where no command is running, all advice is given.

    >>> with running_with(["steps"]):
    ...     if_option("steps", "; give more --steps"), if_option("epochs", "; give more --epochs")
    ('; give more --steps', '')
    """
    known = _options.get()
    return advice if known is None or option in known else ""


def nearest(name: str, known: Iterable[str], instead: str = "") -> str:
    """A hint that names the closest known word, or lists the known ones; `instead` of a long list it says something else.

    >>> nearest("wordpeice", ["wordpiece", "unigram"])
    "did you mean 'wordpiece'?"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return instead or "known: " + ", ".join(known)
