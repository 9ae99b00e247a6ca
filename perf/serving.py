"""usage: perf/serving.py [MODEL…] [--clients N] [--seconds S] [--threads N]

Measure the server under load, on this machine: clients send one text of mixed length after the other, for some seconds, and the table
shows the answered requests per second, their latencies, and the codes other than 200. The server runs in a process of its own,
the clients in this one, so that they share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from pretune.sample_data import example
from pretune.text.examples.labeled import read_labeled

OPERATIONS = ("embed", "fill")
PATIENCE = 120.0


@dataclass
class Load:
    """What the clients of a run saw."""

    latencies: list[float] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0  # until the last answer, which may come after the clients have stopped asking


def texts_of_mixed_length() -> list[str]:
    """Return messages, and several of them joined, up to some 300 words."""
    rng, texts = random.Random(0), read_labeled(example("messages_test.csv"), {}).texts
    return [" ".join(rng.choices(texts, k=rng.choice([1, 1, 1, 2, 4, 16]))) for _ in range(500)]


async def ask(url: str, model: str, operation: str, texts: list[str], end: float, number: int, load: Load) -> None:
    """Send requests of one client until the end of the run; a refused client waits as long as it is told."""
    rng = random.Random(number)
    # Reading the certificates that plain HTTP does not need would take longer than many requests.
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False) as client:
        while time.perf_counter() < end:
            text = rng.choice(texts)
            body: dict[str, Any] = {"texts": [f"[MASK] {text}" if operation == "fill" else text]}
            start = time.perf_counter()
            response = await client.post(f"/api/models/{model}/{operation}", json=body)
            load.codes[response.status_code] += 1
            if response.status_code == 200:
                load.latencies.append(time.perf_counter() - start)
            elif response.status_code == 429:
                await asyncio.sleep(float(response.headers["retry-after"]))


async def run(url: str, model: str, operation: str, texts: list[str], clients: int, seconds: float) -> Load:
    """Return what a number of clients saw within a time."""
    load, start = Load(), time.perf_counter()
    await asyncio.gather(
        *(ask(url, model, operation, texts, start + seconds, number, load) for number in range(clients))
    )
    load.seconds = time.perf_counter() - start
    return load


def batch_size(url: str) -> float:
    """Return the mean number of texts in a batch so far."""
    text = httpx.get(f"{url}/metrics").text
    sums, counts = (
        sum(map(float, re.findall(rf"^pretune_batch_size_{kind}\S* (\S+)$", text, re.MULTILINE)))
        for kind in ("sum", "count")
    )
    return sums / counts if counts else 0.0


def memory(process: int) -> int:
    """Return the resident memory of a process and its children, in MB."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    pids = [str(process), *(pid for children in threads for pid in children.read_text().split())]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * 4096 // 10**6


def main() -> None:
    """Print a row per operation and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="pretune-small-en", help="a model folder or the name of a model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 200], help="numbers of clients")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--threads", type=int, default=0, help="of the worker process")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pretune", "serve", f"model={options.model}", "--port", "0"]
    command += ["--threads", str(options.threads)]
    environment = os.environ | {"PRETUNE_PROGRESS": "plain"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        url = next(found[1] for line in server.stderr if (found := re.search(r" at (http://\S+)", line)))
        texts = texts_of_mixed_length()
        print(f"load average of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print("operation  clients  requests/s   p50 ms   p99 ms  texts/batch so far  memory MB  other codes")
        for operation in OPERATIONS:
            for clients in options.clients:
                load = asyncio.run(run(url, "model", operation, texts, clients, options.seconds))
                p50, p99 = np.percentile(load.latencies, [50, 99]) * 1000
                others = {code: count for code, count in load.codes.items() if code != 200}
                rate = len(load.latencies) / load.seconds
                print(
                    f"{operation:<9} {clients:8} {rate:11.1f} {p50:8.0f} {p99:8.0f} {batch_size(url):19.1f} {memory(server.pid):10}  "
                    f"{others or 'none'}",
                    flush=True,
                )
        server.terminate()


if __name__ == "__main__":
    main()
