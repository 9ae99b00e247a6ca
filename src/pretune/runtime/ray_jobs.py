"""Jobs on a Ray cluster: results in order, a few jobs queued ahead, and retries if a worker is lost.

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

Executor = Literal["local", "ray"]
Result = TypeVar("Result")
RETRIES = 5  # for a job whose worker was lost
AHEAD = 2  # queued jobs per running job


def run_on_ray(
    work: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], most: int | None = None, on_gpu: bool = False
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Yield each job, a tuple of arguments, with its result, in order; at most `most` jobs are queued or running.

    With `on_gpu`, each job takes a GPU if the cluster has any; otherwise a CPU core.
    """
    ray = connect_ray()
    gpus = int(ray.cluster_resources().get("GPU", 0)) if on_gpu else 0
    places = gpus or int(ray.cluster_resources().get("CPU", 1))
    remote = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=RETRIES)(work)
    waiting: deque[tuple[tuple[Any, ...], Any]] = deque()
    room = most or AHEAD * places
    try:
        for job in jobs:
            if len(waiting) >= room:
                first, going = waiting.popleft()
                yield first, get_result(ray, going)
            waiting.append((job, remote.remote(*job)))
        while waiting:
            first, going = waiting.popleft()
            yield first, get_result(ray, going)
    finally:
        for _, going in waiting:
            ray.cancel(going, force=False)


def get_result(ray: Any, going: Any) -> Any:
    """Return the result of a job; a PretuneError in it is raised as if the job had run here."""
    try:
        return ray.get(going)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PretuneError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise PretuneError(
            f"the cluster lost a job {RETRIES + 1} times ({type(error).__name__}), perhaps out of memory; "
            "finished work is kept: run the same command again"
        ) from error


def connect_ray() -> Any:
    """Return Ray, connected to the cluster of RAY_ADDRESS or of this machine, or to a new one that ends with this process."""
    try:
        import ray
    except ImportError as error:
        raise PretuneError("--executor ray needs Ray; install it with: pip install 'pretune[cluster]'") from error
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=True, logging_level="ERROR", configure_logging=True)
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            address = os.environ.get("RAY_ADDRESS", "this machine")
            raise PretuneError(
                f"there is no Ray cluster at {address} ({error}); start one with `ray start --head`"
            ) from error
    return ray


def check_visible(path: Path) -> None:
    """Raise an error if this machine does not see a path of the machine that submitted the job."""
    if not path.exists():
        raise PretuneError(
            f"{path}: {socket.gethostname()} cannot see this path; on a cluster, files must be on a shared file system"
        )


def absolute_if_exists(path: str | Path) -> str:
    """Return an absolute path for all machines; a name that is not a path here, such as a model's, is unchanged."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)
