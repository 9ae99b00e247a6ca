"""The server under the load of many clients."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pretune.serving.limits import ServingLimits
from tests.support.serving import PATIENCE, RunningServer, encoder, running_server

pytestmark = [pytest.mark.end_to_end]
CLIENTS = 200
SECONDS, WARM_UP = 20.0, 5.0
GROWTH = 200 << 20  # bytes; more than what caches of the allocator take, less than a leak of the results


def memory(pid: int) -> int:
    """Return the bytes of memory that a process uses."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def body_of(rng: random.Random, operation: str) -> dict[str, Any]:
    """Return the body of a request with texts of mixed lengths."""
    texts = [" ".join(rng.choices(["a", "dog", "saw", "it"], k=rng.choice([1, 5, 20, 200]))) for _ in range(3)]
    match operation:
        case "fill":
            return {"texts": [f"{text} [MASK]"[-60:] for text in texts[:1]]}
        case "answer":
            return {"questions": texts[:1], "contexts": texts[1:2]}
        case _:
            return {"texts": texts[: rng.randint(1, 3)]}


async def ask(server: RunningServer, number: int, end: float, codes: Counter[int], latencies: list[float]) -> None:
    """Send the requests of a client, one after the other, until the time `end`, and at least one."""
    rng = random.Random(number)
    # Reading the certificates that plain HTTP does not need would take longer than many requests.
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, verify=False) as client:
        while True:
            operation, start = rng.choice(["predict", "tag", "answer", "fill", "embed"]), time.perf_counter()
            response = await client.post(f"/api/models/encoder/{operation}", json=body_of(rng, operation))
            codes[response.status_code] += 1
            if response.status_code == 429:
                assert int(response.headers["retry-after"]) > 0
            else:
                latencies.append(time.perf_counter() - start)
            if time.perf_counter() >= end:
                return


async def load(server: RunningServer, seconds: float) -> tuple[Counter[int], list[float]]:
    """Return the number of responses to all clients by status, and the latencies of those that were not refused."""
    codes, latencies, end = Counter[int](), list[float](), time.perf_counter() + seconds
    await asyncio.gather(*(ask(server, number, end, codes, latencies) for number in range(CLIENTS)))
    return codes, latencies


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_hundred_clients_get_no_error_but_429(record_property: Callable[[str, object], None]) -> None:
    limits = replace(ServingLimits(), timeout=PATIENCE, max_queue=300)
    with running_server({"encoder": encoder()}, limits) as server:
        asyncio.run(load(server, WARM_UP))  # fills caches
        before = memory(server.worker_pid("encoder"))
        codes, latencies = asyncio.run(load(server, SECONDS))
        p50, p99 = np.percentile(latencies, [50, 99])
        report = {"p50": f"{p50:.2f} s", "p99": f"{p99:.2f} s", **{f"status {code}": n for code, n in codes.items()}}
        for name, value in report.items():
            record_property(name, value)  # in the file of --junit-xml
        print(report)  # pytest shows it with -s or -rP
        assert codes[200] + codes[429] == codes.total()
        assert codes[200] >= CLIENTS
        assert memory(server.worker_pid("encoder")) - before < GROWTH
        model = server.registry.models["encoder"]
        assert model.queue.size == 0 and not model.queue.groups
