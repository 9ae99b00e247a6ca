"""The cost of inference: time and peak memory, as on the performance leaderboard of Russian SuperGLUE."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

EVERY = 0.005  # seconds between memory samples
STATUS = Path("/proc/self/statm")


@dataclass
class Cost:
    """The cost of inference: the time in seconds, and the peak memory in bytes.

    The memory is that of the GPU or, on a CPU, of the whole process; None if it is unknown.
    """

    seconds: float = 0.0
    memory: int | None = None


@contextmanager
def measure_cost(device: torch.device) -> Iterator[Cost]:
    """Measure the time and peak memory of the `with` block on a device; the yielded Cost has them after the block."""
    cost = Cost()
    watch = _Resident() if device.type == "cpu" and STATUS.is_file() else None
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    if watch is not None:
        watch.start()
    began = time.perf_counter()
    try:
        yield cost
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            cost.memory = torch.cuda.max_memory_allocated(device)
        cost.seconds = time.perf_counter() - began
        if watch is not None:
            cost.memory = watch.finish()


class _Resident(threading.Thread):
    """A thread that samples the resident memory of this process and records the peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Sample the resident memory of the process until `finish` is called."""
        while not self.ended.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Measure the resident memory of the process once, and update the recorded peak."""
        self.most = max(self.most, int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def finish(self) -> int:
        """Stop the thread, and return the peak memory in bytes."""
        self.ended.set()
        self.join()
        self.look()
        return self.most
