"""What pretune says when something is wrong with the input, not with pretune."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PretuneError(Exception):
    """One line for people: what is wrong, where, and what to do. The command line prints it without a traceback."""


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
