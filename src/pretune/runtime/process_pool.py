"""A process pool for independent jobs: one worker process per device."""

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
def device_pool(devices: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool with one process per device: GPUs, shared if there are fewer, or equal shares of the CPU threads.

    Each process sees only its own GPU. Workers print nothing, and end with this process, or if the block raises an error.
    """
    if devices < 1:
        raise PretuneError("--devices must be at least 1")
    context = get_context("spawn")
    places: Any = context.SimpleQueue()
    for place in assign_gpus(devices, visible_gpus()):
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
                "a worker process ended unexpectedly, perhaps out of memory; finished work is kept: run the same command again. "
                'In a script, use several devices only under `if __name__ == "__main__":`'
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run_jobs(work: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], devices: int) -> list[Result]:
    """Run `work` on each job, a tuple of arguments, in parallel, and return the results in order."""
    with device_pool(devices) as pool:
        return [going.result() for going in [pool.submit(work, *job) for job in jobs]]


def assign_gpus(devices: int, gpus: Sequence[str]) -> list[str]:
    """Return the GPU of each process, or "" if there are none.

    >>> assign_gpus(3, ["0", "1"])
    ['0', '1', '0']
    """
    return list(islice(cycle(gpus or [""]), devices))


def visible_gpus() -> list[str]:
    """Return the names of GPUs for CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def start_worker(threads: int) -> None:
    """Set up a worker process: ignore Ctrl-C, which is for the parent process, and exit whenever that ends."""
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
        os.environ["CUDA_VISIBLE_DEVICES"] = place  # before CUDA is initialized
    os.environ["PRETUNE_PROGRESS"] = "none"
    start_worker(threads)
