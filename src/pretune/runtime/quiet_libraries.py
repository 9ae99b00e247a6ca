"""Silence libraries that log or print details which mean nothing to users, such as every operator of a graph."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Return a context manager that drops log messages, except critical ones, and what is printed to stdout.

    >>> with quiet_libraries():
    ...     print("an operator was not quantized")
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(disabled)
