"""The worker process of a model: it computes batches, and generates several streams of text in turn, token by token.

Messages are lines of JSON, never pickles. A message to the worker has a `kind`: batch, stream, or cancel. The first
line of a message from the worker has its `kind`: ready, failed, results, piece, end, or error. The other lines of a
message of the kind results are the results, one per item, which the server passes on without parsing them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import OPTIONS, PretuneError
from pretune.runtime.process_pool import start_worker
from pretune.serving.model_runner import ModelRunner

if TYPE_CHECKING:
    from pretune.models.engines import Engine


def run_worker(connection: Connection, reference: str, name: str, threads: int, engine: Engine) -> None:
    """Load a model, and serve the messages of a connection until it closes; this is what a worker process runs."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server ends its workers when all requests are answered
    start_worker(threads)
    os.environ[OPTIONS] = ""  # messages must not recommend options of the command line to clients
    try:
        runner = ModelRunner(reference, name, engine)
        send(connection, {"kind": "ready", "facts": runner.facts()})
    except PretuneError as error:
        send(connection, {"kind": "failed", "message": str(error)})
        return
    try:
        Worker(connection, runner).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the server has closed the connection
        return


def send(connection: Connection, header: Mapping[str, Any], *lines: str) -> None:
    """Send a message through a connection: its header as a line of JSON, followed by further lines."""
    connection.send_bytes("\n".join([json.dumps(header), *lines]).encode())


class Worker:
    """The loop of a worker process, which computes batches and generates texts as streams."""

    def __init__(self, connection: Connection, runner: ModelRunner) -> None:
        self.connection, self.runner = connection, runner
        self.streams: dict[int, Generator[str, None, dict[str, Any]]] = {}  # by the number of their job

    def run(self) -> None:
        """Handle messages until the connection closes; while there are none, continue each stream by one token."""
        while True:
            while not self.streams or self.connection.poll(0):
                self.receive(json.loads(self.connection.recv_bytes()))
            for job in list(self.streams):
                self.advance(job)

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle a message: compute a batch, start a stream, or cancel a stream."""
        match message["kind"]:
            case "batch":
                self.compute(message)
            case "stream":
                self.streams[message["job"]] = self.runner.start_stream(message["item"], message["options"])
            case "cancel":
                self.streams.pop(message["job"], None)

    def compute(self, message: Mapping[str, Any]) -> None:
        """Compute a batch and send its results; errors are in the header of the message, by the index of their item."""
        results = self.runner.compute(message["operation"], message["items"], message["options"])
        errors, lines = {}, []
        for number, result in enumerate(results):
            if isinstance(result, Exception):
                errors[number] = self.runner.describe_error(result)
                result = None
            lines.append(json.dumps(result))
        send(self.connection, {"kind": "results", "job": message["job"], "errors": errors}, *lines)

    def advance(self, job: int) -> None:
        """Generate and send the next piece of the stream with number `job`, or the message that it has ended."""
        try:
            piece = next(self.streams[job])
        except StopIteration as end:
            del self.streams[job]
            send(self.connection, {"kind": "end", "job": job, "result": end.value})
        except Exception as error:  # a worker must not end with a bad text
            del self.streams[job]
            status, text = self.runner.describe_error(error)
            send(self.connection, {"kind": "error", "job": job, "status": status, "message": text})
        else:
            if piece:
                send(self.connection, {"kind": "piece", "job": job, "text": piece})
