"""Dynamic batching: a bounded queue of items, which are taken in batches of the same operation and options."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pretune.serving.worker_connection import Answer


class QueueFullError(Exception):
    """An error that is raised if the queue of a model has no room for the items of a request."""


@dataclass
class Entry:
    """An item, such as a text, that waits in the queue of a model, with the future that receives its answer."""

    item: Mapping[str, Any]
    answer: asyncio.Future[Answer]  # cancelled if its client is gone
    arrived: float


@dataclass
class Group:
    """Waiting items with the same operation (such as predict) and the same options, which can share a batch."""

    operation: str
    options: Mapping[str, Any]
    entries: deque[Entry] = field(default_factory=deque)


@dataclass(frozen=True)
class BatchOfEntries:
    """A batch: items of one operation with the same options, which the worker process computes together."""

    operation: str
    options: Mapping[str, Any]
    entries: Sequence[Entry]


class BatchQueue:
    """A bounded queue of items, grouped by operation and options; the group with the oldest item is served first."""

    def __init__(self, max_batch_size: int, max_delay: float, max_queue: int) -> None:
        self.max_batch_size, self.max_delay, self.max_queue = max_batch_size, max_delay, max_queue
        self.groups: dict[str, Group] = {}
        self.size = 0
        self._filled = asyncio.Event()

    def put(
        self, operation: str, items: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[asyncio.Future[Answer]]:
        """Add the items of a request; return one future answer per item, or raise an error if the queue is full."""
        if self.size and self.size + len(items) > self.max_queue:
            raise QueueFullError
        key = json.dumps([operation, options], sort_keys=True)
        group = self.groups.setdefault(key, Group(operation, options))
        loop = asyncio.get_running_loop()
        entries = [Entry(item, loop.create_future(), loop.time()) for item in items]
        group.entries.extend(entries)
        self.size += len(entries)
        self._filled.set()
        return [entry.answer for entry in entries]

    async def take(self) -> BatchOfEntries:
        """Wait for items, and return the next batch, which holds items of one group.

        A batch that is not full is returned when its oldest item has waited for `max_delay` seconds.
        """
        while True:
            await self._filled.wait()
            key, group = min(self.groups.items(), key=lambda pair: pair[1].entries[0].arrived)
            early = group.entries[0].arrived + self.max_delay - asyncio.get_running_loop().time()
            if early > 0 and len(group.entries) < self.max_batch_size:
                await asyncio.sleep(early)
            taken = self._pop(key, group)
            if taken:
                return BatchOfEntries(group.operation, group.options, taken)

    def _pop(self, key: str, group: Group) -> list[Entry]:
        """Remove the oldest items of a group from the queue, and return up to a full batch of them.

        Items whose clients have disconnected are dropped. `key` is the key of the group in `groups`.
        """
        taken: list[Entry] = []
        while group.entries and len(taken) < self.max_batch_size:
            entry = group.entries.popleft()
            self.size -= 1
            if not entry.answer.done():
                taken.append(entry)
        if not group.entries:
            del self.groups[key]
        if not self.groups:
            self._filled.clear()
        return taken
