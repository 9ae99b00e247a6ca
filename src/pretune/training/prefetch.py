"""The feed: which packs a step takes, and their batches, made in a thread while the step before runs.

The packs of a step are chosen, and their batches made, with what was known of the budget when the step before began: one step
late, with a thread or without, so that both give the same bits.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from pretune.packed import Batch
from pretune.training.budget import Clock
from pretune.training.data_streams import Pack, Streams
from pretune.training.parallel.distributed import World


@dataclass
class Step:
    """This process's part of a step."""

    packs: list[Pack]
    batches: list[Batch]
    spare: int = 0  # of these, at the end: others have as many more, and this process goes along with nothing to learn

    @property
    def real(self) -> list[Batch]:
        """The batches that there is something to learn from."""
        return self.batches[: len(self.batches) - self.spare]


class Feed:
    """Steps, one after the other. With `ahead`, the next one is made in a thread; closed, a step not taken does not count."""

    def __init__(self, streams: Streams, world: World, clock: Clock, *, ahead: bool, pinned: bool) -> None:
        self.streams, self.world, self.pinned = streams, world, pinned
        self.made: Future[Step] | None = None
        self.thread: ThreadPoolExecutor | None = None
        if ahead:
            # A thread of its own has a current GPU of its own.
            device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pinned else (None, ())
            self.thread = ThreadPoolExecutor(1, "feed", *device)
        self._note(clock)

    def next(self, clock: Clock) -> Step:
        """The step that begins at this time."""
        step = self.made.result() if self.made is not None else self._make()
        self.made = None
        self._note(clock)
        return step

    def look_ahead(self) -> None:
        """Start on the step after."""
        if self.thread is not None:
            self.made = self.thread.submit(self._make)

    def state(self) -> dict[str, Any]:
        """Where the first step begins that was not taken yet, and what it is made with; for checkpoints."""
        return {"positions": self.positions, "known": self.known}

    def restore(self, state: dict[str, Any], clock: Clock) -> None:
        """Go to a saved place."""
        self.streams.restore(state["positions"])
        self._note(Clock(clock.budget, state["known"]))

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)
        self.streams.restore(self.positions)

    def _note(self, clock: Clock) -> None:
        self.positions, self.known, self.progress = self.streams.state(), dict(clock.used), clock.progress()

    def _make(self) -> Step:
        packs = self.streams.next_step(self.progress)
        mine, spare = deal(packs, self.world)
        batches = [self.streams.batch(pack, self.progress) for pack in mine]
        if spare:
            like = batches[0] if batches else self.streams.batch(packs[0], self.progress)
            mine += [packs[0] if not batches else mine[0]] * spare
            batches += [like.blank()] * spare
        if self.pinned:
            batches = [batch.pinned() for batch in batches]
        return Step(mine, batches, spare)


def deal(packs: list[Pack], world: World) -> tuple[list[Pack], int]:
    """This process's packs of a step, and how many more the first process has."""
    mine = packs[world.rank :: world.size]
    return mine, -(-len(packs) // world.size) - len(mine)
