"""Tiny models to serve, and a server in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import uvicorn

from pretune.objectives import parse_objective
from pretune.serving.app import create_app
from pretune.serving.limits import ServingLimits
from pretune.serving.model_registry import ModelRegistry
from pretune.serving.server import bind_socket, http_server
from tests.support.tiny_models import random_model, small_tokenizer

TASKS = {
    "kind": {"labels": ["no", "yes"]},
    "marks": {"labels": ["O", "B-X", "I-X"], "scheme": "BIO", "default_tag": "O", "splitting": "punctuation"},
    "asked": {"stride": 4},
}
PATIENCE = 600.0  # seconds; a limit for hanging servers that slow and busy machines do not reach


@cache
def encoder() -> Path:
    """Save a random encoder that fills masks, classifies, tags, and answers, and return its folder."""
    return save_encoder(Path(mkdtemp()) / "encoder", "mlm | kind: classify | marks: tag | asked: answer", TASKS)


def save_encoder(folder: Path, objective: str, tasks: dict[str, dict[str, Any]]) -> Path:
    """Save a random encoder with the heads of an objective, whose tasks have the given settings, and return its folder."""
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm", max_position_embeddings=64)
    model.objective, model.tasks = objective, tasks
    model.add_heads(parse_objective(objective, tasks).objectives)
    model.save(folder)
    return folder


@cache
def decoder() -> Path:
    """Save a random causal language model, and return its folder."""
    folder = Path(mkdtemp()) / "decoder"
    random_model("gpt2", small_tokenizer("byte-level-bpe"), "lm", n_positions=128).save(folder)
    return folder


@cache
def translator() -> Path:
    """Save a random encoder-decoder, and return its folder."""
    folder = Path(mkdtemp()) / "translator"
    random_model("t5", small_tokenizer("unigram"), "generate").save(folder)
    return folder


@dataclass
class RunningServer:
    """A server that runs in a thread of this process."""

    registry: ModelRegistry
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Send a request with a JSON body."""
        return httpx.post(self.url + path, json=body, timeout=PATIENCE, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Send a request without a body."""
        return httpx.get(self.url + path, timeout=PATIENCE, **options)

    def worker_pid(self, name: str) -> int:
        """Return the process id of the worker of a model."""
        worker = self.registry.models[name].worker
        assert worker is not None
        pid = worker.process.pid
        assert pid is not None
        return pid

    def stop(self) -> None:
        """Ask the server to end, as a signal does, and return at once."""
        self.server.should_exit = True


@contextmanager
def running_server(
    models: Mapping[str, Path | str], limits: ServingLimits | None = None, *, reload_every: float = 0.0, **options: Any
) -> Iterator[RunningServer]:
    """Run a server on a free port while the block runs; the options are those of `create_app`."""
    started: dict[str, Any] = {}
    bound = bind_socket("127.0.0.1", 0)

    async def run() -> None:
        registry = ModelRegistry(
            {name: str(path) for name, path in models.items()},
            limits or ServingLimits(timeout=PATIENCE),
            threads=1,
            reload_every=reload_every,
        )
        app = create_app(registry, **options)
        server = http_server(app, registry)
        started.update(registry=registry, server=server, loop=asyncio.get_running_loop())
        await server.serve(sockets=[bound])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive() or ("server" in started and started["server"].started))
    assert thread.is_alive(), "the server did not start"
    found = RunningServer(**started, port=bound.getsockname()[1], thread=thread)
    try:
        yield found
    finally:
        found.stop()
        thread.join(30)
        found.server.force_exit = True  # of clients that left in the middle of a body, or that still keep a connection
        thread.join(PATIENCE)
        bound.close()
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, and fail if that takes very long."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
