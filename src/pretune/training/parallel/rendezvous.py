"""Rendezvous of the processes that torchrun started, also after it has restarted them."""

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


def new_rendezvous_store() -> Any:
    """Return a new key-value store through which the processes find one another; None if PyTorch's own store works.

    torchrun keeps one store over all restarts, in which addresses of lost processes mislead their successors (pytorch
    issue 135712). So the first process names a new store, and answers only processes that called since it started.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist: Any = torch.distributed
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False)
    name = _invite(store, size) if rank == 0 else _follow(store, rank)
    return dist.PrefixStore(f"pretune/{name}", store)


def _invite(store: Any, size: int) -> str:
    """Tell all other processes the name of the new store, and return the name; called by process 0.

    The name is published until all processes of the group, `size` in number, have acknowledged it.
    """
    name = uuid.uuid4().hex
    missing = set(range(1, size))
    deadline = time.monotonic() + PATIENCE
    while missing:
        called = [store.get(f"pretune/call/{rank}").decode() for rank in range(1, size) if _has(store, f"call/{rank}")]
        store.set("pretune/answer", json.dumps({"name": name, "called": called}))
        missing = {rank for rank in missing if not _has(store, f"{name}/heard/{rank}")}
        _pause(deadline, f"process 0 has had no answer from process {', '.join(map(str, sorted(missing)))}")
    return name


def _follow(store: Any, rank: int) -> str:
    """Ask process 0 for the name of the new store until it answers, and return the name; `rank` is this process."""
    own = uuid.uuid4().hex
    store.set(f"pretune/call/{rank}", own)
    answer: dict[str, Any] = {"called": []}
    deadline = time.monotonic() + PATIENCE
    while own not in answer["called"]:
        _pause(deadline, f"process {rank} has had no answer from process 0")
        if _has(store, "answer"):
            answer = json.loads(store.get("pretune/answer"))
    store.set(f"pretune/{answer['name']}/heard/{rank}", "")
    return str(answer["name"])


def _has(store: Any, key: str) -> bool:
    return bool(store.check([f"pretune/{key}"]))


def _pause(deadline: float, problem: str) -> None:
    """Sleep briefly, or raise an error about `problem` if the time `deadline` has passed."""
    if time.monotonic() > deadline:
        raise PretuneError(f"{problem} for {PATIENCE:.0f} s; check that all processes were started")
    time.sleep(PAUSE)
