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
    """The batches of a training step that this process runs, with their positions in the data."""

    packs: list[Pack]
    batches: list[Batch]
    blank: int = 0  # number of blank batches at the end: other processes have more packs, and all must run equally many

    @property
    def real(self) -> list[Batch]:
        """The batches with data, without the blank batches that give all processes the same number of batches."""
        return self.batches[: len(self.batches) - self.blank]


class Prefetcher:
    """A source of the batches of each training step; with `ahead`, a thread builds the next step's batches early."""

    def __init__(self, streams: DataStreams, world: World, clock: Clock, *, ahead: bool, pinned: bool) -> None:
        self.streams, self.world, self.pinned = streams, world, pinned
        self.prefetched: Future[StepBatches] | None = None
        self.thread: ThreadPoolExecutor | None = None
        if ahead:
            # The current GPU is a property of each thread.
            device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pinned else (None, ())
            self.thread = ThreadPoolExecutor(1, "feed", *device)
        self._record(clock)

    def next(self, clock: Clock) -> StepBatches:
        """Return the batches of the training step that starts now; `clock` has the budget used before this step."""
        step = self.prefetched.result() if self.prefetched is not None else self._make()
        self.prefetched = None
        self._record(clock)
        return step

    def load_first(self) -> None:
        """Build the batches of the first training step, for which the data of an epoch are read and arranged."""
        self.prefetched = Future()
        self.prefetched.set_result(self._make())

    def prefetch_next(self) -> None:
        """Start to build the batches of the next training step in the thread; without a thread, do nothing."""
        if self.thread is not None:
            self.prefetched = self.thread.submit(self._make)

    def state(self) -> dict[str, Any]:
        """Return the position in the data and the used budget that determine the next batches, for a checkpoint."""
        return {"positions": self.positions, "known": self.clock_used}

    def restore(self, state: dict[str, Any], clock: Clock) -> None:
        """Restore the position in the data and the used budget from a checkpoint; `clock` has the budget's limits."""
        self.streams.restore(state["positions"])
        self._record(Clock(clock.budget, state["known"]))

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)
        self.streams.restore(self.positions)

    def _record(self, clock: Clock) -> None:
        """Record the position in the data and the used budget, which determine the batches of the next step."""
        self.positions, self.clock_used, self.progress = self.streams.state(), dict(clock.used), clock.progress()

    def _make(self) -> StepBatches:
        """Build the batches of the next training step that this process runs."""
        packs = self.streams.next_step(self.progress)
        own, blank = deal(packs, self.world)
        batches = [self.streams.batch(pack, self.progress) for pack in own]
        if blank:
            like = batches[0] if batches else self.streams.batch(packs[0], self.progress)
            own += [own[0] if batches else packs[0]] * blank
            batches += [like.with_zero_weights()] * blank
        if self.pinned:
            batches = [batch.pinned() for batch in batches]
        return StepBatches(own, batches, blank)


def deal(packs: list[Pack], world: World) -> tuple[list[Pack], int]:
    """Return this process's share of a step's batches, and the number of blank batches that it needs in addition.

    With the blank batches, all processes have the same number of batches.
    """
    own = packs[world.rank :: world.size]
    return own, -(-len(packs) // world.size) - len(own)
