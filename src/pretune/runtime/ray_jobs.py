"""Work on a Ray cluster, job by job: results in order, a few jobs ahead, done again where a worker is lost.

A job is called with plain values and reads and writes files that all machines share. It may be done twice, so that it must do no
harm the second time.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pretune.runtime.errors import PretuneError

Engine = Literal["local", "ray"]
Result = TypeVar("Result")
RETRIES = 5  # of a job whose worker was lost
AHEAD = 2  # jobs waiting for each that is being done


def on_cluster(
    work: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], most: int | None = None, on_gpu: bool = False
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Jobs, each the arguments of a call, with what came of it, in order; at most `most` are under way.

    With `on_gpu`, each takes a GPU, where the cluster has any; else a core.
    """
    ray = connect()
    gpus = int(ray.cluster_resources().get("GPU", 0)) if on_gpu else 0
    places = gpus or int(ray.cluster_resources().get("CPU", 1))
    remote = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=RETRIES)(work)
    waiting: deque[tuple[tuple[Any, ...], Any]] = deque()
    room = most or AHEAD * places
    try:
        for job in jobs:
            if len(waiting) >= room:
                first, going = waiting.popleft()
                yield first, result_of(ray, going)
            waiting.append((job, remote.remote(*job)))
        while waiting:
            first, going = waiting.popleft()
            yield first, result_of(ray, going)
    finally:
        for _, going in waiting:
            ray.cancel(going, force=False)


def result_of(ray: Any, going: Any) -> Any:
    """What a job came to; a job's own error is told as if it had been done here."""
    try:
        return ray.get(going)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PretuneError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise PretuneError(
            f"the cluster lost a job {RETRIES + 1} times ({type(error).__name__}); out of memory? "
            "What is finished stays: run the same command again"
        ) from error


def connect() -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS or of this machine, else to one that is started here and ends with us."""
    try:
        import ray
    except ImportError as error:
        raise PretuneError("--engine ray needs Ray; install it with: pip install 'pretune[cluster]'") from error
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=True, logging_level="ERROR", configure_logging=True)
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            address = os.environ.get("RAY_ADDRESS", "this machine")
            raise PretuneError(f"no Ray cluster at {address} ({error}); start one with `ray start --head`") from error
    return ray


def check_seen(path: Path) -> None:
    """Refuse a path that this machine does not share with the one that sent the job."""
    if not path.exists():
        raise PretuneError(
            f"{path}: {socket.gethostname()} does not see it; on a cluster, files must be where all machines see them"
        )


def everywhere(path: str | Path) -> str:
    """A path as all machines know it; what is no path here, such as a model's name, stays as it is."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)
