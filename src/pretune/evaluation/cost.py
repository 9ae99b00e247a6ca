"""What answers cost: time and memory, as Russian SuperGLUE's board of performance has them beside quality."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

EVERY = 0.005  # seconds between looks at the memory
STATUS = Path("/proc/self/statm")


@dataclass
class Cost:
    """Seconds, and the most memory at once, in bytes; on a CPU that of the whole process, where it can be seen."""

    seconds: float = 0.0
    memory: int | None = None


@contextmanager
def measured(device: torch.device) -> Iterator[Cost]:
    """What the block costs."""
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
    """Looks at the process's resident memory now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(EVERY):
            self.look()

    def look(self) -> None:
        self.most = max(self.most, int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def finish(self) -> int:
        self.ended.set()
        self.join()
        self.look()
        return self.most
