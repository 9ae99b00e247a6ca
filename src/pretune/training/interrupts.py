"""Interrupting a training: the first Ctrl-C or SIGTERM ends it after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(Exception):  # noqa: N818
    """Raised when a training was interrupted and has saved a checkpoint."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set an event on Ctrl-C and SIGTERM instead of ending the process; a second signal ends it.

    Only the main thread can handle signals: in any other thread the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request_stop(number: int, frame: Any) -> None:
        event.set()
        for known, handler in handlers.items():
            signal.signal(known, handler)

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield event
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
