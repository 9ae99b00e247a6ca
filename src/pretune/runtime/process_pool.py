"""Work that falls into independent pieces, shared out to processes: one for each device, or several that share it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import cycle, islice
from multiprocessing import active_children, get_context, parent_process
from typing import Any, TypeVar

import torch

from pretune.runtime.errors import PretuneError

Result = TypeVar("Result")


@contextmanager
def worker_each(devices: int) -> Iterator[ProcessPoolExecutor]:
    """A process for each of so many devices: GPUs, in turns where they are fewer, or equal shares of the processor.

    Each sees its own GPU alone. They say nothing, and end when this process does or when the block ends in an error.
    """
    if devices < 1:
        raise PretuneError("--devices must be 1 or more")
    context = get_context("spawn")
    places: Any = context.SimpleQueue()
    for place in places_for(devices, visible_gpus()):
        places.put(place)
    threads = max(1, torch.get_num_threads() // devices)
    before = set(active_children())
    pool = ProcessPoolExecutor(devices, context, initializer=_take_place, initargs=(threads, places))
    try:
        yield pool
    except BaseException as error:
        for child in set(active_children()) - before:
            child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise PretuneError(
                "a process of a device ended early; out of memory? What is finished stays: run the same command again. "
                'A script must use several devices under `if __name__ == "__main__":`'
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def share_out(work: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], devices: int) -> list[Result]:
    """What comes of each job, the arguments of a call, in order."""
    with worker_each(devices) as pool:
        return [going.result() for going in [pool.submit(work, *job) for job in jobs]]


def places_for(devices: int, gpus: Sequence[str]) -> list[str]:
    """The GPU of each process, "" where there is none.

    >>> places_for(3, ["0", "1"])
    ['0', '1', '0']
    """
    return list(islice(cycle(gpus or [""]), devices))


def visible_gpus() -> list[str]:
    """The names under which GPUs can be made visible to another process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def begin(threads: int) -> None:
    """In a worker: Ctrl-C is for the process that started this one, and this one ends when that does, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _take_place(threads: int, places: Any) -> None:
    place = places.get()
    if place:
        os.environ["CUDA_VISIBLE_DEVICES"] = place  # before anything looks for GPUs
    os.environ["PRETUNE_PROGRESS"] = "none"
    begin(threads)
