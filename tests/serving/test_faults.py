"""Tests of a server whose worker crashes, hangs, or gets another model, and of its end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.serving.limits import ServingLimits
from pretune.serving.run_files import model_signature
from pretune.serving.served_model import ServedModel
from tests.support.serving import PATIENCE, RunningServer, decoder, encoder, running_server, save_encoder, wait_until

pytestmark = [pytest.mark.not_fast, pytest.mark.timeout(1800)]
LIMITS = ServingLimits(timeout=PATIENCE, max_queue=4, max_batch_size=1, body_timeout=PATIENCE)
EMBED = "/api/models/model/embed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model of this module, which tests change."""
    return Path(shutil.copytree(encoder(), tmp_path_factory.mktemp("served") / "model"))


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningServer]:
    """Run a server with a short queue that computes one text at a time."""
    with running_server({"model": folder}, LIMITS) as found:
        yield found


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    """Return the server of this module when it is ready."""
    wait_until(lambda: running.get("/ready").status_code == 200)
    return running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Open a pool of clients."""
    with ThreadPoolExecutor(8) as found:
        yield found


def model_of(server: RunningServer) -> ServedModel:
    return server.registry.models["model"]


def ask(server: RunningServer, pool: ThreadPoolExecutor, text: str = "a dog") -> Future[httpx.Response]:
    """Send a request, and return its response of the future."""
    return pool.submit(server.post, EMBED, {"texts": [text]})


def is_computing(server: RunningServer) -> bool:
    """Return whether the worker has a batch."""
    worker = model_of(server).worker
    return worker is not None and bool(worker.batches)


@contextmanager
def stopped_worker(server: RunningServer) -> Iterator[int]:
    """Stop the worker process while the block runs, so that what it gets waits."""
    pid = server.worker_pid("model")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):  # it was killed
            os.kill(pid, signal.SIGCONT)


def test_a_crash_is_answered_by_503_and_a_restart(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    before = server.worker_pid("model")
    with stopped_worker(server):
        lost = ask(server, pool)
        wait_until(lambda: is_computing(server))
        waiting = ask(server, pool)
        wait_until(lambda: model_of(server).queue.size == 1)
        os.kill(before, signal.SIGKILL)
        response = lost.result(PATIENCE)
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert "is being restarted" in response.json()["error"]["message"]
    assert waiting.result(PATIENCE).status_code == 200, "what was not computed yet waits for the new worker"
    assert server.worker_pid("model") != before and model_of(server).version == 1
    assert 'pretune_worker_restarts_total{model="model"} 1' in server.get("/metrics").text


def test_while_a_model_cannot_be_loaded_again_requests_get_503(server: RunningServer, folder: Path) -> None:
    away = folder.with_name("away")
    folder.rename(away)
    os.kill(server.worker_pid("model"), signal.SIGKILL)
    wait_until(lambda: not model_of(server).is_ready)
    assert server.get("/ready").status_code == 503 and server.get("/health").status_code == 200
    response = server.post(EMBED, {"texts": ["a"]})
    assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
    assert 'pretune_model_ready{model="model"} 0' in server.get("/metrics").text
    away.rename(folder)
    wait_until(lambda: server.get("/ready").status_code == 200)
    assert server.post(EMBED, {"texts": ["a"]}).status_code == 200


def test_a_full_queue_is_answered_by_429(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    with stopped_worker(server):
        accepted = [ask(server, pool)]
        wait_until(lambda: is_computing(server))
        accepted += [ask(server, pool) for _ in range(4)]
        wait_until(lambda: model_of(server).queue.size == 4)
        response = server.post(EMBED, {"texts": ["a"]})
        assert response.status_code == 429 and int(response.headers["retry-after"]) > 0
        assert "is full; try again in" in response.json()["error"]["message"]
        assert server.get("/health").status_code == 200
    assert [request.result(PATIENCE).status_code for request in accepted] == [200] * 5


def test_clients_that_give_up_make_room(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    with stopped_worker(server):
        first = ask(server, pool)
        wait_until(lambda: is_computing(server))
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            body = b'{"texts": ["a"]}'
            head = f"POST {EMBED} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: model_of(server).queue.size == 1)
        (group,) = model_of(server).queue.groups.values()
        wait_until(lambda: group.entries[0].answer.cancelled())
    assert first.result(PATIENCE).status_code == 200
    wait_until(lambda: model_of(server).queue.size == 0)


def test_a_request_that_takes_too_long_gets_504_and_its_worker_is_replaced(server: RunningServer) -> None:
    model, before = model_of(server), server.worker_pid("model")
    limits = model.limits
    with stopped_worker(server):
        model.limits = replace(limits, timeout=0.1)
        response = server.post(EMBED, {"texts": ["a"]})
        assert response.status_code == 504 and "longer than 0.1 s" in response.json()["error"]["message"]
        wait_until(lambda: model.worker is None or model.worker.process.pid != before)
    model.limits = limits
    wait_until(lambda: server.get("/ready").status_code == 200)
    assert server.post(EMBED, {"texts": ["a"]}).status_code == 200


def look_for_changes(server: RunningServer) -> None:
    server.loop.call_soon_threadsafe(server.registry.look_for_changes)


def test_a_changed_model_is_loaded_without_dropping_requests(
    server: RunningServer, folder: Path, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    old = server.post(EMBED, {"texts": ["a dog"]}).json()["embeddings"]
    weights = folder / "model.safetensors"
    kept = weights.read_bytes()
    other = save_other_weights(tmp_path / "other")
    first = model_of(server).version
    done, codes = threading.Event(), set[int]()

    def ask_on() -> None:
        while not done.is_set():
            codes.add(server.post(EMBED, {"texts": ["a dog"]}).status_code)

    clients = [pool.submit(ask_on) for _ in range(2)]
    try:
        os.replace(shutil.copy(other / "model.safetensors", tmp_path / "new"), weights)
        look_for_changes(server)
        wait_until(lambda: model_of(server).version == first + 1)
        new = server.post(EMBED, {"texts": ["a dog"]}).json()["embeddings"]
        assert not np.allclose(old, new, atol=1e-3)
        weights.write_bytes(kept[:1000])  # a broken version
        look_for_changes(server)
        broken = model_signature(str(folder))
        wait_until(lambda: model_of(server).refused == broken)
        assert server.post(EMBED, {"texts": ["a dog"]}).json()["embeddings"] == new
        weights.write_bytes(kept)
        look_for_changes(server)
        wait_until(lambda: model_of(server).version == first + 2)
    finally:
        done.set()
    for client in clients:
        client.result(PATIENCE)
    assert codes == {200}
    found = server.post(EMBED, {"texts": ["a dog"]}).json()["embeddings"]
    np.testing.assert_allclose(found, old, atol=1e-6)


def save_other_weights(folder: Path) -> Path:
    """Save the same encoder with other weights."""
    from pretune.models.loading import load

    model = load(encoder())
    with torch.no_grad():
        for tensor in model.root.tensors().values():
            tensor.mul_(1.5)
    model.save(folder)
    return folder


def test_a_slow_body_is_given_up(tmp_path: Path) -> None:
    with (
        running_server({}, replace(LIMITS, body_timeout=0.2)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.settimeout(PATIENCE)
        connection.sendall(f"POST {EMBED} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = b""
        while part := connection.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive within 0.2 s" in answer


def test_the_end_waits_for_what_was_accepted() -> None:
    with ThreadPoolExecutor(2) as pool, running_server({"model": encoder()}, LIMITS) as server:
        with stopped_worker(server):
            accepted = ask(server, pool)
            wait_until(lambda: is_computing(server))
            server.stop()
            wait_until(lambda: not accepts(server))
        assert accepted.result(PATIENCE).status_code == 200


def accepts(server: RunningServer) -> bool:
    """Return whether the server takes new connections."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_stream_that_loses_its_worker_ends_with_an_error() -> None:
    body = {"prompt": "it is", "max_new_tokens": 120, "stream": True}
    with running_server({"model": decoder()}, LIMITS) as server:
        url = f"{server.url}/api/models/model/generate"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.worker_pid("model"), signal.SIGKILL)
            rest = [line for line in lines if line]
        assert "is being restarted" in rest[-1] or '"done": true' in rest[-1]


def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    import asyncio

    from pretune.serving.model_registry import ModelRegistry

    broken = save_encoder(tmp_path / "broken", "mlm", {})
    (broken / "model.safetensors").write_bytes(b"nothing")

    async def start() -> None:
        await ModelRegistry({"broken": str(broken)}, LIMITS, threads=1).start()

    with pytest.raises(PretuneError, match="broken"):
        asyncio.run(start())


def test_the_end_of_the_server_does_not_wait_for_a_client_that_vanished_in_the_middle_of_a_body() -> None:
    with running_server({"model": encoder()}, replace(LIMITS, body_timeout=PATIENCE)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as vanished:
            head = f"POST {EMBED} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
            vanished.sendall(head.encode() + b"{")
            server.get("/health")  # the request above has been read by then
            server.server.should_exit = True
            answer = vanished.recv(4096)  # before the limit for bodies, and before the socket is closed
            server.thread.join(PATIENCE / 2)
        assert b"408" in answer and not server.thread.is_alive()
