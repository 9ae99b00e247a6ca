"""Checks before training that all processes have the same recipe, the same data, and the same run folder."""

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
from pretune.runtime.progress import log_info
from pretune.runtime.recipe import flatten_settings
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.data_streams import DataStreams
from pretune.training.parallel.distributed import World

PATIENCE = 10.0  # seconds until a new file is visible on a network file system


def check_agreement(world: World, what: str, facts: Mapping[str, Any]) -> None:
    """Raise an error if the mapping `facts` is not the same in all processes; `what` is its name in the message."""
    if world.size == 1:
        return
    gathered = world.gather(
        [socket.gethostname(), {key: _digest(value) for key, value in flatten_settings(facts).items()}]
    )
    first = gathered[0][1]
    for rank, (host, own) in enumerate(gathered):
        different = sorted(key for key in {*first, *own} if first.get(key) != own.get(key))
        if different:
            raise_once(
                world,
                f"the {what} of process {rank} (on {host}) differs from that of process 0 (on {gathered[0][0]}) in "
                f"{', '.join(different)}; start all processes with the same command and the same files",
            )


def check_shared_folder(world: World, folder: Path) -> None:
    """Raise an error unless all processes, also those on other machines, see the same run folder."""
    if world.size == 1:
        return
    mark = folder / f"{TEMPORARY}shared-{os.getpid()}"
    name = world.gather(mark.name)[0]

    def create_mark() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()

    world.run_on_first(create_mark)
    deadline = time.monotonic() + PATIENCE
    while not (visible := name in _names(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    gathered = world.gather([socket.gethostname(), visible])
    if world.first:
        mark.unlink()
        with suppress(OSError):  # the folder existed before and is not empty
            folder.rmdir()
    if others := [f"{rank} (on {host})" for rank, (host, visible) in enumerate(gathered) if not visible]:
        raise_once(
            world,
            f"{folder}: process {', '.join(others)} cannot see the files that process 0 (on {gathered[0][0]}) writes there; "
            "--out must be a folder that all machines share",
        )


def raise_once(world: World, message: str) -> None:
    """Raise an error that all processes have found; only the first process prints its message, the others just exit."""
    if world.first:
        raise PretuneError(message)
    raise SystemExit(1)


def describe_data(tokenizer: Tokenizer, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return digests of the tokenizer and the training data, to compare them between processes.

    `own` is the training data, a mapping with the keys `store` (tokenized text) and `rows` (a table).
    """
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


def warn_of_idle_processes(world: World, streams: DataStreams) -> None:
    """Log a warning if a step's batches cannot be divided evenly among the processes, and suggest a batch size."""
    stage = streams.stages[-1]
    rounds = -(-stage.packs // world.size)
    idle = 1 - stage.packs / (rounds * world.size)
    if idle > 0.05:
        tokens = streams.streams[stage.first].packing.tokens
        log_info(
            f"a step has {stage.packs} microbatch{'es' if stage.packs > 1 else ''} of {tokens:,} tokens for {world.size} processes, "
            f"which are idle {100 * idle:.0f} % of the time; to use all of them, set batch.microbatch_tokens to "
            f"{tokens * stage.packs // (rounds * world.size):,} or less"
        )


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _names(folder: Path) -> set[str]:
    """Return the names of the files in a folder, or an empty set if there is no folder.

    Unlike a test whether one file exists, the list is not cached by network file systems.
    """
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
