"""Run worker processes that answer requests; a request and its answer are frames: bytes, preceded by their number.

A worker reads frames from stdin, writes an answer to stdout for each, and ends when its parent does: nothing keeps running in the
background after a kill, and only the parent writes files.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

from pretune.runtime.errors import PretuneError, if_option

Answer = TypeVar("Answer")
Setup = Callable[[dict[str, Any]], Callable[[bytes], bytes]]  # settings → function that answers a frame


class WorkerProcess:
    """A worker process that answers requests; requests and answers are byte strings (frames).

    The process imports `module` and calls its function `setup` with `settings`; this call returns the function that
    answers requests.
    """

    def __init__(self, module: str, setup: str, settings: Mapping[str, Any]) -> None:
        source = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
        # A new process, not a fork: it does not depend on the caller's threads and main module.
        # In a separate session, Ctrl-C reaches only the parent.
        code = f"from {__name__} import serve; from {module} import {setup}; serve({setup})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.back = self.process.stdin, self.process.stdout
        self._send(json.dumps(settings).encode())

    def answer(self, frame: bytes) -> bytes:
        """Send a request (frame) to the worker process, and return its answer."""
        self._send(frame)
        if (reply := _read_frame(self.back)) is None:
            raise self._ended()
        return reply

    def _send(self, frame: bytes) -> None:
        try:
            _write_frame(self.to, frame)
        except BrokenPipeError as error:
            raise self._ended() from error

    def _ended(self) -> PretuneError:
        advice = if_option("processes", "; try fewer --processes")
        code = self.process.wait()
        return PretuneError(f"a worker process ended with exit code {code}, perhaps out of memory{advice}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.back.close()
        with suppress(BrokenPipeError):
            self.to.close()


class WorkerPool(Generic[Answer]):
    """A pool of workers, each a function that answers one request (frame) at a time, such as `WorkerProcess.answer`."""

    def __init__(self, workers: Sequence[Callable[[bytes], Answer]]) -> None:
        self._idle: queue.SimpleQueue[Callable[[bytes], Answer]] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self.size = len(workers)
        self._threads = ThreadPoolExecutor(self.size)

    def submit(self, frame: bytes) -> Future[Answer]:
        """Queue a request (frame) for the next idle worker, and return a future for its answer."""
        return self._threads.submit(self._answer, frame)

    def _answer(self, frame: bytes) -> Answer:
        worker = self._idle.get()
        try:
            return worker(frame)
        finally:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, the frames that are being answered are not waited for: the caller ends their processes.
        self._threads.shutdown(wait=kind is None, cancel_futures=True)


def serve(setup: Setup) -> None:
    """Run the loop of a worker process: answer requests (frames) from stdin on stdout, until stdin ends.

    The first frame contains the settings; `setup` is called with them and returns the function that answers requests.
    """
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    answer = setup(json.loads(_read_frame(source) or b"{}"))
    while (frame := _read_frame(source)) is not None:
        _write_frame(sink, answer(frame))


def _write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> bytes | None:
    """Read the next frame of a stream, and return its content; None if the stream ends before the frame does.

    A frame is the number of its bytes (8 bytes, little-endian) followed by these bytes.
    """
    header = stream.read(8)
    if len(header) < 8:
        return None
    size = int.from_bytes(header, "little")
    content = stream.read(size)
    return content if len(content) == size else None
