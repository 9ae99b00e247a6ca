"""A model that is served: its worker process, which is restarted when it crashes and replaced when the model's files change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.serving.batching import BatchOfEntries, BatchQueue, QueueFullError
from pretune.serving.errors import RequestError, missing_capability, queue_full, timed_out, unavailable
from pretune.serving.limits import ServingLimits
from pretune.serving.metrics import ServerMetrics
from pretune.serving.run_files import RunFiles, Signature, model_signature
from pretune.serving.worker_connection import Answer, WorkerLostError, WorkerProcess

if TYPE_CHECKING:
    from pretune.models.engines import Engine

LONGEST_BACKOFF = 30.0  # seconds between restarts of a worker that keeps crashing
LONGEST_RETRY = 60  # seconds that a client is told to wait


class ServedModel:
    """A model of the server: its name, its queue of requests, its worker process, and its description."""

    def __init__(
        self,
        name: str,
        reference: str,
        limits: ServingLimits,
        metrics: ServerMetrics,
        threads: int,
        engine: Engine = "torch",
    ) -> None:
        self.name, self.reference, self.limits, self.metrics = name, reference, limits, metrics
        self.threads, self.engine = threads, engine
        self.queue = BatchQueue(limits.max_batch_size, limits.max_delay, limits.max_queue)
        self.worker: WorkerProcess | None = None  # None while it is being restarted
        self.facts: dict[str, Any] = {}
        self.files = RunFiles({}, None)
        self.version = 0
        self.streams = 0
        self.seconds_per_item = 0.01  # a moving average, for Retry-After
        self._available = asyncio.Event()
        self._changed = asyncio.Event()  # asks to look for changed files now
        self._signature = model_signature(reference)
        self.refused: Signature | None = None  # the last files that could not be loaded
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, reload_every: float) -> None:
        """Load the model, and begin to answer requests; every `reload_every` seconds, check its files for changes."""
        await self._replace_worker()
        self._spawn(self._answer_batches())
        self._spawn(self._reload_changes(reload_every))

    async def close(self) -> None:
        """End the worker process of the model; the caller makes sure that all accepted requests have been answered."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.worker is not None:
            await self.worker.close()

    @property
    def is_ready(self) -> bool:
        """Return whether the model can answer requests."""
        return self.worker is not None

    def describe(self) -> dict[str, Any]:
        """Return the description of the model that the server shows its clients."""
        run = {"has_report": self.files.report is not None, "has_curves": bool(self.files.curves)}
        return {"name": self.name, **self.facts, **run, "version": self.version}

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the worker process -------------------------------------------------------------------------------------------

    async def _replace_worker(self) -> None:
        """Start a worker process with the current files of the model; the old worker ends when its jobs are done."""
        signature = model_signature(self.reference)
        worker = WorkerProcess(self.reference, self.name, self.threads, self.engine)
        try:
            facts = await worker.start()
            files = await asyncio.to_thread(RunFiles.read, self.reference)
        except BaseException:
            await worker.close()
            raise
        # A folder that was away at first, while it was being replaced, has no signature; the worker has read it since.
        signature = signature or model_signature(self.reference)
        old, self.worker, self.facts, self.files = self.worker, worker, facts, files
        self.version += signature != self._signature or not self.version
        self._signature = signature
        self._available.set()
        self.metrics.versions.values[self.name,] = self.version
        self.metrics.ready.values[self.name,] = 1
        self._spawn(self._watch(worker))
        if old is not None:
            self._spawn(self._retire(old))

    async def _retire(self, worker: WorkerProcess) -> None:
        """End a worker process that was replaced, as soon as its jobs are done."""
        while not worker.is_idle and not worker.ended.is_set():
            await asyncio.sleep(0.02)
        await worker.close()

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait until a worker process crashes, and start a new one, with growing pauses between failed attempts."""
        await worker.ended.wait()
        if worker is not self.worker:  # it was replaced
            return
        self.worker = None
        self._available.clear()
        self.metrics.ready.values[self.name,] = 0
        await asyncio.to_thread(worker.process.join)
        code = worker.process.exitcode
        log_info(f"{self.name}: the worker process ended with the status {code}; it is being restarted")
        await worker.close()
        pause = 0.0
        while self.worker is None:
            await asyncio.sleep(pause)
            pause = min(LONGEST_BACKOFF, 2 * pause + 0.5)
            self.metrics.restarts.values[self.name,] += 1
            try:
                await self._replace_worker()
            except PretuneError as error:
                log_info(f"{self.name}: the model could not be loaded again ({error}); trying again in {pause:g} s")
        log_info(f"{self.name}: the worker process was restarted")

    # -- hot reload ---------------------------------------------------------------------------------------------------

    def look_for_changes(self) -> None:
        """Check the files of the model for changes now, instead of at the next interval."""
        self._changed.set()

    async def _reload_changes(self, every: float) -> None:
        """Check the files of the model every `every` seconds, and replace the worker process if they have changed.

        Files that are still being written are left alone until they stay the same for a while.
        """
        seen = self._signature
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), every or None)
            forced = self._changed.is_set()
            self._changed.clear()
            now = await asyncio.to_thread(model_signature, self.reference)
            settled, seen = now == seen or forced, now
            if settled and now not in (self._signature, self.refused, frozenset()) and self.worker is not None:
                await self._reload(now)

    async def _reload(self, signature: Any) -> None:
        try:
            await self._replace_worker()
        except PretuneError as error:
            self.refused = signature
            log_info(
                f"{self.name}: the changed model could not be loaded, so version {self.version} stays in use: {error}"
            )
        else:
            log_info(f"{self.name}: version {self.version} of the model is in use")

    # -- requests -----------------------------------------------------------------------------------------------------

    def require(self, operation: str) -> None:
        """Raise an error if the model cannot do an operation."""
        if operation not in self.facts["capabilities"]:
            raise missing_capability(self.name, operation, self.facts["capabilities"])

    async def compute(
        self, operation: str, items: Sequence[Mapping[str, Any]], options: Mapping[str, Any], field: str
    ) -> list[bytes]:
        """Compute an operation for items, and return one result per item as JSON, in order.

        An error names the item by `field` and its index, as in texts[3].
        """
        self.require(operation)
        if self.worker is None:
            raise unavailable(self.name)
        try:
            waiting = self.queue.put(operation, items, options)
        except QueueFullError:
            raise self._full() from None
        self.metrics.queue.values[self.name,] = self.queue.size
        try:
            async with asyncio.timeout(self.limits.timeout):
                answers = await asyncio.gather(*waiting)
        except TimeoutError:
            raise timed_out(self.limits.timeout) from None
        return [checked(answer, f"{field}[{number}]") for number, answer in enumerate(answers)]

    async def stream(self, item: Mapping[str, Any], options: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the messages of a worker about a generated text: one per piece, and one with the result at the end."""
        self.require("generate")
        if self.worker is None:
            raise unavailable(self.name)
        if self.streams >= self.limits.max_streams:
            raise self._full()
        self._count_streams(1)
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for message in self.worker.stream(item, options):
                    yield message
        except TimeoutError:
            raise timed_out(self.limits.timeout) from None
        except WorkerLostError:
            raise unavailable(self.name) from None
        finally:
            self._count_streams(-1)

    def _count_streams(self, more: int) -> None:
        self.streams += more
        self.metrics.streams.values[self.name,] = self.streams

    def _full(self) -> RequestError:
        return queue_full(self.name, min(LONGEST_RETRY, ceil(self.queue.size * self.seconds_per_item) or 1))

    async def _answer_batches(self) -> None:
        """Take batches from the queue and compute them, one at a time, until the server stops."""
        while True:
            await self._available.wait()
            batch = await self.queue.take()
            self.metrics.queue.values[self.name,] = self.queue.size
            await self._available.wait()
            await self._answer(batch)

    async def _answer(self, batch: BatchOfEntries) -> None:
        worker, loop = self.worker, asyncio.get_running_loop()
        assert worker is not None
        items, start = [entry.item for entry in batch.entries], loop.time()
        self.metrics.batches.observe(len(items), self.name, batch.operation)
        answers: list[Answer]
        try:
            # All clients have given up by then; a worker that still computes would only keep others waiting.
            async with asyncio.timeout(2 * self.limits.timeout):
                answers = await worker.compute(batch.operation, items, batch.options)
        except TimeoutError:
            worker.kill()
            answers = [timed_out(self.limits.timeout)] * len(items)
        except WorkerLostError:
            answers = [unavailable(self.name)] * len(items)
        else:
            seconds = loop.time() - start
            self.metrics.computing.observe(seconds, self.name, batch.operation)
            self.seconds_per_item += 0.1 * (seconds / len(items) - self.seconds_per_item)
        for entry, answer in zip(batch.entries, answers, strict=True):
            settle_answer(entry.answer, answer)


def settle_answer(future: asyncio.Future[Answer], answer: Answer) -> None:
    """Set the answer of a waiting item, unless its client has disconnected."""
    if not future.done():
        future.set_result(answer)


def checked(answer: Answer, field: str) -> bytes:
    """Return the answer to an item, or raise it if it is an error; `field` is the item's place in the request body."""
    if isinstance(answer, RequestError):
        raise RequestError(answer.status, answer.message, field if answer.status == 422 else None, answer.headers)
    return answer
