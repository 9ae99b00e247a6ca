"""Run jobs on a Ray cluster: results in order, a few jobs queued ahead, and retries if a worker is lost.

A job gets plain values, and reads and writes files on a file system that all machines share. It may run twice, and must
tolerate that.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import import_optional

Executor = Literal["local", "ray"]
Result = TypeVar("Result")
RETRIES = 5  # for a job whose worker was lost
AHEAD = 2  # queued jobs per running job


def run_on_ray(
    work: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], max_jobs: int | None = None, on_gpu: bool = False
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Call `work` on a Ray cluster with the arguments of each job, and yield (job, result) in the order of the jobs.

    A job is the tuple of arguments of a call. At most `max_jobs` jobs are queued or running at the same time. Each job
    takes a CPU core and, with `on_gpu`, also a GPU if the cluster has any.
    """
    ray = connect_ray()
    gpus = int(ray.cluster_resources().get("GPU", 0)) if on_gpu else 0
    limit = max_jobs or AHEAD * (gpus or int(ray.cluster_resources().get("CPU", 1)))
    remote = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=RETRIES)(work)
    waiting: deque[tuple[tuple[Any, ...], Any]] = deque()
    try:
        for job in jobs:
            if len(waiting) >= limit:
                first, reference = waiting.popleft()
                yield first, get_result(ray, reference)
            waiting.append((job, remote.remote(*job)))
        while waiting:
            first, reference = waiting.popleft()
            yield first, get_result(ray, reference)
    finally:
        for _, reference in waiting:
            ray.cancel(reference, force=False)


def get_result(ray: Any, reference: Any) -> Any:
    """Wait for the Ray job `reference`, and return its result; `ray` is the Ray module.

    Raise a PretuneError if the job raised one or was lost.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PretuneError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise PretuneError(
            f"the Ray cluster lost a job {RETRIES + 1} times ({type(error).__name__}), perhaps out of memory; "
            "finished work is kept: run the same command again"
        ) from error


def connect_ray() -> Any:
    """Return the Ray module after connecting it to a cluster.

    This is the cluster at RAY_ADDRESS, else a running one on this machine, else a new local one.
    """
    ray = import_optional("ray", "--executor ray")
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=True, logging_level="ERROR", configure_logging=True)
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            address = os.environ.get("RAY_ADDRESS", "this machine")
            problem = f"there is no Ray cluster at {address} ({error})"
            raise PretuneError(f"{problem}; start one with `ray start --head`") from error
    return ray


def check_visible(path: Path) -> None:
    """Raise an error if a path is missing on this machine of a Ray cluster.

    The path exists on the machine that submitted the job, so the two machines do not share this part of the file
    system.
    """
    if not path.exists():
        advice = "on a cluster, put files on a file system that all machines share"
        raise PretuneError(f"{path}: the machine {socket.gethostname()} does not have this path; {advice}")


def absolute_if_exists(path: str | Path) -> str:
    """Return the absolute path of an existing file or folder; return any other string unchanged.

    Such a string may be the name of a bundled model.
    """
    return str(Path(path).resolve()) if Path(path).exists() else str(path)
