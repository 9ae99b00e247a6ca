"""The server under the load of many clients."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pretune.serving.limits import ServingLimits
from tests.support.serving import PATIENCE, RunningServer, encoder, running_server

pytestmark = [pytest.mark.end_to_end]
CLIENTS, REQUESTS = 200, 6  # requests of each client
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


async def ask(server: RunningServer, number: int, codes: Counter[int]) -> None:
    """Send the requests of a client, one after the other."""
    rng = random.Random(number)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        for _ in range(REQUESTS):
            operation = rng.choice(["predict", "tag", "answer", "fill", "embed"])
            response = await client.post(f"/api/models/encoder/{operation}", json=body_of(rng, operation))
            codes[response.status_code] += 1
            if response.status_code == 429:
                assert int(response.headers["retry-after"]) > 0


async def load(server: RunningServer) -> Counter[int]:
    """Return the number of responses to all clients by status."""
    codes: Counter[int] = Counter()
    await asyncio.gather(*(ask(server, number, codes) for number in range(CLIENTS)))
    return codes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_hundred_clients_get_no_error_but_429() -> None:
    limits = replace(ServingLimits(), timeout=PATIENCE, max_queue=300)
    with running_server({"encoder": encoder()}, limits) as server:
        asyncio.run(load(server))  # fills caches
        before = memory(server.worker_pid("encoder"))
        codes = asyncio.run(load(server))
        assert codes[200] + codes[429] == codes.total() == CLIENTS * REQUESTS
        assert codes[200] > 0
        assert memory(server.worker_pid("encoder")) - before < GROWTH
        model = server.registry.models["encoder"]
        assert model.queue.size == 0 and not model.queue.groups
