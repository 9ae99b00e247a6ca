"""Run independent jobs in a process pool with one worker process per device."""

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
    """Open a process pool of `devices` workers, each with one GPU or, without GPUs, an equal share of the CPU threads.

    If there are fewer GPUs than workers, some workers share a GPU. Workers print nothing, and end when this process
    ends or the `with` block fails.
    """
    if devices < 1:
        raise PretuneError(f"--devices {devices}: choose at least 1 device")
    context = get_context("spawn")
    gpus: Any = context.SimpleQueue()
    for gpu in assign_gpus(devices, visible_gpus()):
        gpus.put(gpu)
    threads = max(1, torch.get_num_threads() // devices)
    before = set(active_children())
    pool = ProcessPoolExecutor(devices, context, initializer=_start_device_worker, initargs=(threads, gpus))
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
    """Call `work` with the arguments of each job, in parallel, and return the results in the order of the jobs.

    A job is the tuple of arguments of a call; `devices` is the number of worker processes, each with a device.
    """
    with device_pool(devices) as pool:
        return [future.result() for future in [pool.submit(work, *job) for job in jobs]]


def assign_gpus(devices: int, gpus: Sequence[str]) -> list[str]:
    """Return the GPU of each of `devices` worker processes; if there are more processes than GPUs, GPUs are shared.

    Without GPUs, the result is "" for each process.

    >>> assign_gpus(3, ["0", "1"])
    ['0', '1', '0']
    """
    return list(islice(cycle(gpus or [""]), devices))


def visible_gpus() -> list[str]:
    """Return the identifiers of the visible GPUs, as CUDA_VISIBLE_DEVICES lists them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def start_worker(threads: int) -> None:
    """Set up a worker process: set its number of threads, ignore Ctrl-C, and exit when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _start_device_worker(threads: int, gpus: Any) -> None:
    """Set up a worker process of `device_pool`: set its number of CPU threads, and take a GPU from the queue `gpus`."""
    if gpu := gpus.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CUDA is initialized
    os.environ["PRETUNE_PROGRESS"] = "none"
    start_worker(threads)
