"""What pretune says when something is wrong with the input, not with pretune."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

OPTIONS = "PRETUNE_OPTIONS"  # those of the running command, for processes that it starts, too


class PretuneError(Exception):
    """One line for people: what is wrong, where, and what to do. The command line prints it without a traceback."""


@contextmanager
def running_with(options: Iterable[str]) -> Iterator[None]:
    """Let messages inside the block name these options of the command line alone."""
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = " ".join(options)
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def if_option(option: str, advice: str) -> str:
    """Return advice that names an option, or "" where the running command does not have that option.

    For messages of code that commands share. Called from Python, where no command is running, all advice is given.

    >>> with running_with(["steps"]):
    ...     if_option("steps", "; give more --steps"), if_option("epochs", "; give more --epochs")
    ('; give more --steps', '')
    """
    known = os.environ.get(OPTIONS)
    return advice if known is None or option in known.split() else ""


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
