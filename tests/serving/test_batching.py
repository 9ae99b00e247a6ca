"""Tests of the queue that makes batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.serving.batching import BatchQueue, QueueFullError


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def numbers(queue: BatchQueue, *values: int, operation: str = "embed", **options: Any) -> list[Any]:
    """Put items that are numbers into a queue."""
    return queue.put(operation, [{"text": str(value)} for value in values], options)


def test_items_of_several_requests_are_taken_together_in_order() -> None:
    async def work() -> None:
        queue = BatchQueue(8, 0.0, 100)
        numbers(queue, 1, 2)
        numbers(queue, 3)
        batch = await queue.take()
        assert [entry.item["text"] for entry in batch.entries] == ["1", "2", "3"]
        assert queue.size == 0

    run(work())


def test_other_operations_and_options_are_taken_apart_oldest_first() -> None:
    async def work() -> None:
        queue = BatchQueue(8, 0.0, 100)
        numbers(queue, 1, operation="predict")
        numbers(queue, 2, top_k=1)
        numbers(queue, 3, operation="predict")
        numbers(queue, 4, top_k=2)
        batches = [await queue.take() for _ in range(3)]
        found = [(b.operation, dict(b.options), [e.item["text"] for e in b.entries]) for b in batches]
        assert found == [("predict", {}, ["1", "3"]), ("embed", {"top_k": 1}, ["2"]), ("embed", {"top_k": 2}, ["4"])]

    run(work())


def test_an_item_waits_for_others_but_not_for_long() -> None:
    async def work() -> None:
        queue = BatchQueue(8, 0.05, 100)
        taken = asyncio.ensure_future(queue.take())
        numbers(queue, 1)
        await asyncio.sleep(0)
        numbers(queue, 2)
        assert [entry.item["text"] for entry in (await taken).entries] == ["1", "2"]
        numbers(queue, 3)
        assert len((await queue.take()).entries) == 1

    run(work())


def test_a_full_batch_does_not_wait() -> None:
    async def work() -> None:
        queue = BatchQueue(2, 1000.0, 100)
        numbers(queue, 1, 2, 3)
        assert len((await queue.take()).entries) == 2

    run(work())


def test_items_of_clients_that_are_gone_are_left_out() -> None:
    async def work() -> None:
        queue = BatchQueue(8, 0.0, 100)
        for answer in numbers(queue, 1, 2):
            answer.cancel()
        numbers(queue, 3)
        assert [entry.item["text"] for entry in (await queue.take()).entries] == ["3"]
        (gone,) = numbers(queue, 4, operation="predict")
        gone.cancel()
        taken = asyncio.ensure_future(queue.take())
        await asyncio.sleep(0.01)
        assert not taken.done() and queue.size == 0
        numbers(queue, 5)
        assert len((await taken).entries) == 1

    run(work())


def test_a_full_queue_refuses_items_but_an_empty_one_takes_any_request() -> None:
    async def work() -> None:
        queue = BatchQueue(8, 0.0, 4)
        numbers(queue, *range(6))
        with pytest.raises(QueueFullError):
            numbers(queue, 7)
        await queue.take()
        numbers(queue, 8, 9)

    run(work())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=30), st.integers(1, 8))
def test_every_item_is_taken_once(requests: list[tuple[str, int]], size: int) -> None:
    async def work() -> None:
        queue = BatchQueue(size, 0.0, 10_000)
        expected: dict[str, list[str]] = {}
        for number, (operation, count) in enumerate(requests):
            names = [f"{number}.{part}" for part in range(count)]
            queue.put(operation, [{"text": name} for name in names], {})
            expected.setdefault(operation, []).extend(names)
        found: dict[str, list[str]] = {}
        while queue.size:
            batch = await queue.take()
            assert 1 <= len(batch.entries) <= size
            found.setdefault(batch.operation, []).extend(entry.item["text"] for entry in batch.entries)
        assert found == expected

    run(work())
