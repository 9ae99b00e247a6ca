"""Where processes that torchrun started find each other, also after it has started them again."""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

import torch.distributed

from pretune.runtime.errors import PretuneError

PATIENCE = 600.0  # seconds
PAUSE = 0.02


def fresh_store() -> Any:
    """A store with nothing in it, for processes that join one another; None where torch's own way is good.

    torchrun keeps one store over all restarts. What lost processes left there, their addresses above all, misleads those that
    follow them (pytorch issue 135712), and how often each machine has restarted need not be the same. So the first process
    gives the new store a name, and answers those alone that have called it since it began: names of the lost ones do not
    count.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist: Any = torch.distributed
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False)
    name = _invite(store, size) if rank == 0 else _follow(store, rank)
    return dist.PrefixStore(f"pretune/{name}", store)


def _invite(store: Any, size: int) -> str:
    """The first process: tell who has called so far, until all have heard."""
    name = uuid.uuid4().hex
    silent = set(range(1, size))
    deadline = time.monotonic() + PATIENCE
    while silent:
        called = [store.get(f"pretune/call/{rank}").decode() for rank in range(1, size) if _has(store, f"call/{rank}")]
        store.set("pretune/answer", json.dumps({"name": name, "called": called}))
        silent = {rank for rank in silent if not _has(store, f"{name}/heard/{rank}")}
        _pause(deadline, f"process 0 has not heard of {', '.join(map(str, sorted(silent)))}")
    return name


def _follow(store: Any, rank: int) -> str:
    """Every other one: call, until the answer is to this call."""
    own = uuid.uuid4().hex
    store.set(f"pretune/call/{rank}", own)
    answer: dict[str, Any] = {"called": []}
    deadline = time.monotonic() + PATIENCE
    while own not in answer["called"]:
        _pause(deadline, f"process {rank} has not heard of process 0")
        if _has(store, "answer"):
            answer = json.loads(store.get("pretune/answer"))
    store.set(f"pretune/{answer['name']}/heard/{rank}", "")
    return str(answer["name"])


def _has(store: Any, key: str) -> bool:
    return bool(store.check([f"pretune/{key}"]))


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise PretuneError(f"{problem} for {PATIENCE:.0f} s; were all of them started?")
    time.sleep(PAUSE)
