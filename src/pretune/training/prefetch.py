"""Prefetching: build the batches of the next step in a thread while the current step runs.

The packs of a step, and their batches, depend on the progress at the start of the step before. This delay applies with and
without a thread, so that both give bit-identical results.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from pretune.packed import Batch
from pretune.training.budget import Clock
from pretune.training.data_streams import DataStreams, Pack
from pretune.training.parallel.distributed import World


@dataclass
class StepBatches:
    """The packs and batches of a step that this process runs."""

    packs: list[Pack]
    batches: list[Batch]
    spare: int = 0  # blank batches at the end: other processes have more packs, and all must run equally many

    @property
    def real(self) -> list[Batch]:
        """The batches with targets."""
        return self.batches[: len(self.batches) - self.spare]


class Prefetcher:
    """An iterator over the batches of steps, which builds the next ones in a thread if `ahead` is set.

    As a context manager it resets the streams, on exit, to the first step that was not taken.
    """

    def __init__(self, streams: DataStreams, world: World, clock: Clock, *, ahead: bool, pinned: bool) -> None:
        self.streams, self.world, self.pinned = streams, world, pinned
        self.made: Future[StepBatches] | None = None
        self.thread: ThreadPoolExecutor | None = None
        if ahead:
            # The current GPU is a property of each thread.
            device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pinned else (None, ())
            self.thread = ThreadPoolExecutor(1, "feed", *device)
        self._record(clock)

    def next(self, clock: Clock) -> StepBatches:
        """Return the batches of the step that starts now."""
        step = self.made.result() if self.made is not None else self._make()
        self.made = None
        self._record(clock)
        return step

    def prefetch_next(self) -> None:
        """Start to build the batches of the next step, if there is a thread for it."""
        if self.thread is not None:
            self.made = self.thread.submit(self._make)

    def state(self) -> dict[str, Any]:
        """Return the positions of the first step not taken, and the clock its batches depend on, for a checkpoint."""
        return {"positions": self.positions, "known": self.known}

    def restore(self, state: dict[str, Any], clock: Clock) -> None:
        """Continue from a checkpoint."""
        self.streams.restore(state["positions"])
        self._record(Clock(clock.budget, state["known"]))

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)
        self.streams.restore(self.positions)

    def _record(self, clock: Clock) -> None:
        self.positions, self.known, self.progress = self.streams.state(), dict(clock.used), clock.progress()

    def _make(self) -> StepBatches:
        packs = self.streams.next_step(self.progress)
        mine, spare = deal(packs, self.world)
        batches = [self.streams.batch(pack, self.progress) for pack in mine]
        if spare:
            like = batches[0] if batches else self.streams.batch(packs[0], self.progress)
            mine += [packs[0] if not batches else mine[0]] * spare
            batches += [like.with_zero_weights()] * spare
        if self.pinned:
            batches = [batch.pinned() for batch in batches]
        return StepBatches(mine, batches, spare)


def deal(packs: list[Pack], world: World) -> tuple[list[Pack], int]:
    """Return this process's packs of a step, and how many more the process with the most packs has."""
    mine = packs[world.rank :: world.size]
    return mine, -(-len(packs) // world.size) - len(mine)
