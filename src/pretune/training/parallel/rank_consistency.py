"""What processes that train together must have in common: the recipe, the data, the run folder. Checked before anything is done."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretune.runtime.atomic_io import TEMPORARY
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import say
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import Streams
from pretune.training.parallel.distributed import World

PATIENCE = 10.0  # seconds until a new file has come around on a network's file system


def agree(world: World, what: str, facts: Mapping[str, Any]) -> None:
    """Refuse to begin where a process has other facts than the first; says which one, where it runs, and what differs."""
    if world.size == 1:
        return
    told = world.gather([socket.gethostname(), {key: _digest(value) for key, value in _flat(facts).items()}])
    first = told[0][1]
    for rank, (host, own) in enumerate(told):
        different = sorted(key for key in {*first, *own} if first.get(key) != own.get(key))
        if different:
            raise_once(
                world,
                f"process {rank} (on {host}) does not have the {what} of process 0 (on {told[0][0]}): "
                f"these differ: {', '.join(different)}; start all with the same command, on the same files",
            )


def check_shared(world: World, folder: Path) -> None:
    """Refuse a run folder that is another one on another machine."""
    if world.size == 1:
        return
    mark = folder / f"{TEMPORARY}shared-{os.getpid()}"
    name = world.gather(mark.name)[0]

    def leave() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()

    world.first_alone(leave)
    deadline = time.monotonic() + PATIENCE
    while not (seen := name in _names(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = world.gather([socket.gethostname(), seen])
    if world.first:
        mark.unlink()
        with suppress(OSError):  # where it was there before, and is not empty
            folder.rmdir()
    blind = [f"{rank} (on {host})" for rank, (host, sees) in enumerate(told) if not sees]
    if blind:
        raise_once(
            world,
            f"{folder}: process {', '.join(blind)} does not see what process 0 (on {told[0][0]}) writes there; "
            "--out must be a folder that all machines share",
        )


def raise_once(world: World, message: str) -> None:
    """An error that all processes know of: one tells it, and all end."""
    if world.first:
        raise PretuneError(message)
    raise SystemExit(1)


def describe_data(tokenizer: Tokenizer, own: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to learn from, in short: by the checksums of a store's shards, and by the texts and labels of rows."""
    facts: dict[str, Any] = {"tokenizer": tokenizer.digest}
    if "store" in own:
        facts["store"] = hashlib.sha256("".join(shard["sha256"] for shard in own["store"].shards).encode()).hexdigest()
        facts["documents"] = hashlib.sha256(own["documents"].tobytes()).hexdigest()
    if "rows" in own:
        digest = hashlib.sha256()
        rows = own["rows"]
        for cell in (*rows.texts, *(rows.pairs or ()), *(getattr(rows, "labels", None) or ())):
            digest.update(str(cell).encode("utf-8", "surrogatepass") + b"\0")
        facts["rows"] = digest.hexdigest()
    return facts


def say_idle(world: World, streams: Streams) -> None:
    """Where packs cannot be dealt evenly, some processes wait for others: say so, and what to do."""
    stage = streams.stages[-1]
    rounds = -(-stage.packs // world.size)
    idle = 1 - stage.packs / (rounds * world.size)
    if idle > 0.05:
        tokens = streams.streams[stage.first].packing.tokens
        say(
            f"a step has {stage.packs} pack{'s' if stage.packs > 1 else ''} of {tokens:,} tokens, for {world.size} processes: "
            f"{100 * idle:.0f} % of their time they wait; with batch.pack={tokens * stage.packs // (rounds * world.size):,} "
            "or less all have work"
        )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _names(folder: Path) -> set[str]:
    """The names in a folder, asked for anew: to look for one name may find that it was not there before."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
