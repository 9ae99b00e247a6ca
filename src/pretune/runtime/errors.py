"""Define the error for users, and helpers for the wording of its messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

LONGEST_MESSAGE = 1_200  # characters; input that is echoed must not flood a terminal
LONGEST_QUOTE = 80
OPTIONS = "PRETUNE_OPTIONS"  # environment variable with the options of the running command, inherited by its processes


class PretuneError(Exception):
    """An error for users: one line that states what is wrong, where, and what to do.

    The command line prints the message without a traceback. Line breaks and control characters become spaces, and a
    message that echoes a lot of input is shortened in the middle.

    >>> str(PretuneError("line one\\nline two"))
    'line one line two'
    """

    def __init__(self, message: str) -> None:
        super().__init__(shorten(" ".join(make_printable(message).split()), LONGEST_MESSAGE))


def quote(value: object) -> str:
    """Return the `repr` of a value from a file or an option, shortened if it is too long for an error message.

    >>> quote("mlm")
    "'mlm'"
    """
    if isinstance(value, str | bytes):
        value = value[: 2 * LONGEST_QUOTE]
    try:
        return shorten(make_printable(repr(value)), LONGEST_QUOTE + 10)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a structure nested too deeply
        return f"a very large {type(value).__name__}"


def shorten(text: str, limit: int) -> str:
    """Return a text unchanged if it has at most `limit` characters, else its beginning and its end around "…".

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[: limit - 1 - half]}…{text[-half:]}"


@contextmanager
def command_options(options: Iterable[str]) -> Iterator[None]:
    """Declare the options of the running command: inside the `with` block, errors recommend no other options."""
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
    """Return `advice` about an option if the running command has this option, else "".

    If no command is running, as in calls from Python, all advice is returned.

    >>> with command_options(["steps"]):
    ...     if_option("steps", "; give more --steps"), if_option("epochs", "; give more --epochs")
    ('; give more --steps', '')
    """
    known = os.environ.get(OPTIONS)
    return advice if known is None or option in known.split() else ""


def suggest(name: str, known: Iterable[str], instead: str = "") -> str:
    """Return a hint for an unknown name, to be appended to an error message.

    The hint is the most similar known name; if none is similar, the text `instead` or, without this text, a list of all
    known names.

    >>> suggest("wordpeice", ["wordpiece", "unigram"])
    "did you mean 'wordpiece'?"
    """
    known = sorted(known)
    close = get_close_matches(name[:LONGEST_QUOTE], known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return instead or "known: " + ", ".join(known)


def make_printable(text: str) -> str:
    """Return a text with each control character, which a terminal would not print, replaced by a space.

    >>> make_printable("a\\x1b[31m")
    'a [31m'
    """
    return "".join(character if character.isprintable() else " " for character in text)
