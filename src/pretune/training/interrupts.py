"""Interrupts: the first Ctrl-C or SIGTERM ends a training after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(Exception):  # noqa: N818
    """An exception that ends an interrupted training run, after it has saved a checkpoint."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Return a context manager that yields an event; the first Ctrl-C or SIGTERM sets it, and training can end.

    Without the context manager, these signals would end the process at once. It works only in the main thread.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore_handlers() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def request_stop(number: int, frame: Any) -> None:
        event.set()
        restore_handlers()

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield event
    finally:
        restore_handlers()
