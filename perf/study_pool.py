"""Worker processes that share one GPU and stay alive between jobs; one that ends unexpectedly is replaced.

A worker imports pretune once, and keeps its compiled code as long as its jobs have the same label. It gets an equal share of the CPU
threads and of the GPU memory. With the Multi-Process Service of CUDA (MPS), kernels of several workers run at the same time; without it, the
workers take turns on the GPU. If MPS is not available or does not work, the workers do without it.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

MPS_CONTROL = "nvidia-cuda-mps-control"
MEMORY = 0.88  # fraction of the GPU memory that all workers together may use; each CUDA context needs some more
RECOMPILATIONS = 64  # of one function; beyond the limit, torch would silently run it without compilation
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
TOKENIZER_THREADS = 4  # at least, because workers tokenize rarely and briefly
DIED = "the worker process ended"


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its key, its worker, and what it returned, or the reason why it failed."""

    key: str
    worker: Worker
    seconds: float
    result: Any = None
    error: str | None = None
    crashed: bool = False  # the process of the worker ended


@dataclass
class Worker:
    """A worker process: its number, its connection, and the job that it runs."""

    number: int
    process: Any
    connection: Connection
    key: str | None = None
    label: str = ""  # of its current or last job
    began: float = 0.0


class WorkerPool:
    """Worker processes that run calls; `size` workers share the CPU threads and the GPU memory equally."""

    def __init__(self, size: int, logs: Path, variables: Mapping[str, str] | None = None) -> None:
        """Start `size` workers that write to files in the folder `logs`; `variables` are added to their environment."""
        self.size, self.logs, self.variables = size, logs, dict(variables or {})
        self.context = get_context("spawn")
        self.threads = max(1, cpu_count() // size)
        logs.mkdir(parents=True, exist_ok=True)
        self.workers = [self._start(number) for number in range(size)]

    def _start(self, number: int, memory: float | None = None) -> Worker:
        ours, theirs = self.context.Pipe()
        share = MEMORY / self.size if memory is None else memory
        arguments = (theirs, self.logs / f"worker-{number}.log", self.threads, share)
        process = self.context.Process(target=work, args=arguments)  # no daemon, because jobs start processes, too
        own = {**dict.fromkeys(THREAD_VARIABLES, str(self.threads)), "PRETUNE_PROGRESS": "none"}
        own |= {"RAYON_NUM_THREADS": str(max(self.threads, min(TOKENIZER_THREADS, cpu_count()))), **self.variables}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)  # a process inherits the environment when it starts
        try:
            process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()
        return Worker(number, process, ours)

    @property
    def idle(self) -> list[Worker]:
        """The workers without a job."""
        return [worker for worker in self.workers if worker.key is None]

    @property
    def running(self) -> dict[str, Worker]:
        """The workers with a job, by the key of their job."""
        return {worker.key: worker for worker in self.workers if worker.key is not None}

    def submit(self, worker: Worker, key: str, label: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Let an idle worker call a function; jobs with the same label share compiled code."""
        worker.key, worker.label, worker.began = key, label, time.monotonic()
        try:
            worker.connection.send((label, call, arguments))
        except OSError:  # it has ended while it was idle
            self.restart(worker)
            worker.key, worker.label, worker.began = key, label, time.monotonic()
            worker.connection.send((label, call, arguments))

    def poll(self, seconds: float, limit: float | None = None) -> list[Ended]:
        """Wait until jobs have ended or `seconds` are over, and return the ended jobs; replace workers that have died.

        A worker whose job takes longer than `limit` seconds is replaced, too.
        """
        busy = {worker.connection: worker for worker in self.workers if worker.key is not None}
        if not busy:
            return []
        ended = []
        for connection in wait(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]
            assert worker.key is not None
            key, took = worker.key, time.monotonic() - worker.began
            try:
                result, error = worker.connection.recv()
                ended.append(Ended(key, worker, took, result, error))
                worker.key = None
            except (EOFError, OSError):
                worker.process.join(5)
                code = worker.process.exitcode
                ended.append(self._replace(worker, took, f"{DIED} with code {code}"))
        for worker in self.workers if limit is not None else ():
            took = time.monotonic() - worker.began
            if worker.key is not None and limit is not None and took > limit:
                ended.append(self._replace(worker, took, f"{DIED} after {took:.0f} seconds without a result"))
        return ended

    def _replace(self, worker: Worker, seconds: float, error: str) -> Ended:
        assert worker.key is not None
        ended = Ended(worker.key, worker, seconds, error=error, crashed=True)
        self.restart(worker)
        return ended

    def restart(self, worker: Worker, memory: float | None = None) -> None:
        """Replace the process of a worker by a new one, which may use the fraction `memory` of the GPU memory."""
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        new = self._start(worker.number, memory)
        worker.process, worker.connection, worker.key, worker.label = new.process, new.connection, None, ""

    def close(self) -> None:
        """End all workers, also those with a job."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.connection.close()


def work(connection: Connection, log: Path, threads: int, memory: float) -> None:
    """Run the calls that arrive on a connection, and send back what each returns, or its error."""
    stream = log.open("ab", buffering=0)
    os.dup2(stream.fileno(), 1)
    os.dup2(stream.fileno(), 2)
    import torch

    from pretune.runtime.process_pool import start_worker

    start_worker(threads)
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(memory)
        import torch._dynamo

        torch._dynamo.config.recompile_limit = RECOMPILATIONS
    last = ""
    while True:
        try:
            label, call, arguments = connection.recv()
        except EOFError:
            return
        if label != last:
            forget_compiled()
        last = label
        result: Any = None
        error: str | None = None
        try:
            result = call(*arguments)
        except Exception as found:  # the scheduler decides what follows
            error = " ".join(f"{type(found).__name__}: {found}".split())
            traceback.print_exc()
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        connection.send((result, error))


def warm_up() -> dict[str, Any]:
    """Import what jobs need, use the GPU if there is one, and return a description of the machine."""
    import torch

    import pretune.studies.execution  # noqa: F401
    from pretune.training.run_folder import environment

    if torch.cuda.is_available():
        weights = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
        total = float((weights @ weights).float().sum())
        if total != 256.0**3:
            raise RuntimeError(f"the GPU computes {total} instead of {256**3}; use another machine")
    return environment()


def forget_compiled() -> None:
    """Forget the compiled code of other models, if there is any."""
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.reset()


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_mps() -> dict[str, str]:
    """Start MPS and return the environment variables of its clients; return {} if there is no MPS or it does not start."""
    if shutil.which(MPS_CONTROL) is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="mps"))  # short, because the path of a socket has at most 108 characters
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        environment = {**os.environ, **variables}
        subprocess.run([MPS_CONTROL, "-d"], env=environment, check=True, timeout=15, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"MPS does not start: {error}", flush=True)
        stop_mps(variables)
        return {}
    return variables


def stop_mps(variables: Mapping[str, str]) -> None:
    """Stop MPS, if it was started."""
    if "CUDA_MPS_PIPE_DIRECTORY" in variables:
        try:
            subprocess.run(
                [MPS_CONTROL], input=b"quit\n", env={**os.environ, **variables}, check=False, timeout=15, capture_output=True
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            print("MPS could not be stopped; it ends with the machine", flush=True)
