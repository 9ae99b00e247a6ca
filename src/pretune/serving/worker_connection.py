"""The connection to a worker process: it sends jobs, and receives results in a thread that the event loop never waits for."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError
from pretune.serving.errors import RequestError
from pretune.serving.worker import run_worker

if TYPE_CHECKING:
    from pretune.models.engines import Engine

Answer = bytes | RequestError  # the result of an item as JSON, or its error


class WorkerLostError(Exception):
    """An error that is raised if a worker process ends before it has answered."""


class WorkerProcess:
    """A worker process that holds the weights of one model, as the server sees it.

    The process ends when it is closed, or when the server ends.
    """

    def __init__(self, reference: str, name: str, threads: int, engine: Engine = "torch") -> None:
        context = get_context("spawn")
        self.connection, far = context.Pipe()
        self.process = context.Process(target=run_worker, args=(far, reference, name, threads, engine), daemon=True)
        self._far = far
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self.ended = asyncio.Event()
        self.batches: dict[int, asyncio.Future[list[Answer]]] = {}  # by the number of their job
        self.streams: dict[int, asyncio.Queue[Mapping[str, Any]]] = {}
        self._numbers = count()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix=f"send-{name}")

    async def start(self) -> dict[str, Any]:
        """Start the process, wait until its model is loaded, and return the description of the model."""
        await asyncio.to_thread(self.process.start)
        atexit.register(self.process.kill)  # before multiprocessing would wait for the process
        self._far.close()  # only the worker holds this end now, so that its end closes the pipe
        threading.Thread(target=self._read, name=f"receive-{self.name}", daemon=True).start()
        return await self.ready

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def compute(
        self, operation: str, items: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[Answer]:
        """Let the worker compute an operation for a batch of items, and return one answer per item, in order."""
        job, found = next(self._numbers), self.loop.create_future()
        self.batches[job] = found
        try:
            message = {"kind": "batch", "job": job, "operation": operation, "items": items, "options": options}
            await self._send(message)
            return await found
        finally:
            self.batches.pop(job, None)

    async def stream(self, item: Mapping[str, Any], options: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the messages of the worker about a generated text: its pieces, and its end.

        If the caller leaves the loop early, the generation is canceled.
        """
        job, queue = next(self._numbers), asyncio.Queue[Mapping[str, Any]]()
        self.streams[job] = queue
        try:
            await self._send({"kind": "stream", "job": job, "item": item, "options": options})
            while True:
                message = await queue.get()
                if message["kind"] == "lost":
                    raise WorkerLostError
                if message["kind"] == "error":
                    raise RequestError(message["status"], message["message"])
                yield message
                if message["kind"] == "end":
                    return
        finally:
            if self.streams.pop(job, None) is not None and not self.ended.is_set():
                self._submit({"kind": "cancel", "job": job})

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self.ended.is_set():
            raise WorkerLostError
        try:
            await asyncio.wrap_future(self._submit(message))
        except OSError:
            raise WorkerLostError from None

    def _submit(self, message: Mapping[str, Any]) -> Any:
        # In a thread, because a pipe that is full blocks; in one, because messages must not mix.
        return self._sender.submit(self.connection.send_bytes, json.dumps(message).encode())

    # -- messages -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the messages of the worker in a thread, and pass them to the event loop, until the worker ends."""
        with suppress(RuntimeError):  # the event loop is closed
            try:
                while True:
                    self.loop.call_soon_threadsafe(self._receive, self.connection.recv_bytes())
            except (EOFError, OSError):
                self.loop.call_soon_threadsafe(self._end)

    def _receive(self, message: bytes) -> None:
        first, *lines = message.split(b"\n")
        header = json.loads(first)
        match header["kind"]:
            case "ready":
                settle(self.ready, header["facts"])
            case "failed":
                settle(self.ready, PretuneError(header["message"]))
            case "results":
                errors = {int(number): RequestError(*error) for number, error in header["errors"].items()}
                settle(self.batches.get(header["job"]), [errors.get(n, line) for n, line in enumerate(lines)])
            case _:
                if (queue := self.streams.get(header["job"])) is not None:
                    queue.put_nowait(header)

    def _end(self) -> None:
        self.ended.set()
        settle(
            self.ready,
            PretuneError(
                f"the worker process of the model {self.name} ended while it loaded the model; the log above may show why, and a lack of memory is a common cause"
            ),
        )
        for found in self.batches.values():
            settle(found, WorkerLostError())
        for queue in self.streams.values():
            queue.put_nowait({"kind": "lost"})

    # -- end ----------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether the worker has no unfinished jobs."""
        return not self.batches and not self.streams

    def kill(self) -> None:
        """End the process at once; its unfinished jobs fail."""
        self.process.kill()

    async def close(self) -> None:
        """End the process, which must have no unfinished jobs, and free its resources."""
        atexit.unregister(self.process.kill)
        if self.process.pid is not None:
            self.process.kill()
            await asyncio.to_thread(self.process.join)
            await self.ended.wait()
        self._sender.shutdown(wait=False)
        self.connection.close()


def settle(future: asyncio.Future[Any] | None, result: Any) -> None:
    """Set the result or the error of a future, unless the future is None or already done."""
    if future is None or future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
