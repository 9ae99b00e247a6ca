"""Segment memory, on a tiny Transformer-XL."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from pretune.backbones.segment_memory import SegmentMemory
from pretune.backbones.transformer_stack import TransformerStack
from pretune.nn.attention.patterns import causal
from pretune.packed import Capacity, Packed, pack
from tests.support.tiny_training_cases import VOCABULARY, xl

LENGTH = 6


def network(memory: int) -> TransformerStack:
    torch.manual_seed(0)
    return xl(memory).eval().requires_grad_(False)


def segment(ids: np.ndarray, fresh: tuple[int, ...] = (), capacity: Capacity | None = None) -> Packed:  # type: ignore[type-arg]
    """Return a stateful batch (rows, length) with documents that start at the same places in all rows."""
    begins = np.zeros(ids.shape, dtype=bool)
    begins[:, list(fresh)] = True
    lengths = np.full(len(ids), ids.shape[1])
    return pack(ids.ravel(), lengths, columns={"document_start": begins.ravel()}, pattern=causal, capacity=capacity)


@pytest.fixture
def ids() -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(0).integers(5, VOCABULARY, (2, 4 * LENGTH))


def rows(states: Tensor, lanes: int = 2) -> Tensor:
    return states.view(lanes, -1, states.shape[-1])


def test_memory_is_attention_over_the_longer_text(ids) -> None:  # type: ignore[no-untyped-def]
    """With enough slots, segments with memory give the same states as one long segment."""
    stack = network(4 * LENGTH)
    whole = rows(network(0)(segment(ids)).last)
    carry = None
    for start in range(0, 4 * LENGTH, LENGTH):
        states = stack(segment(ids[:, start : start + LENGTH]), carry=carry)
        torch.testing.assert_close(rows(states.last), whole[:, start : start + LENGTH], atol=1e-5, rtol=1e-5)
        carry = SegmentMemory.from_tensors(states.carry.tensors())
        assert carry.used.tolist() == [start + LENGTH] * 2


def test_no_attention_or_memory_across_document_starts(ids) -> None:  # type: ignore[no-untyped-def]
    stack = network(4 * LENGTH)
    first = stack(segment(ids[:, :LENGTH], fresh=(0, 4)))
    assert first.carry.used.tolist() == [2, 2]
    second = stack(segment(ids[:, LENGTH : 2 * LENGTH], fresh=(3,)), carry=first.carry)
    assert second.carry.used.tolist() == [3, 3]
    last = stack(segment(ids[:, 2 * LENGTH : 3 * LENGTH], fresh=(0,)), carry=second.carry)
    found = torch.cat([rows(states.last) for states in (first, second, last)], 1)
    bounds = [0, 4, LENGTH + 3, 2 * LENGTH, 3 * LENGTH]
    alone = [rows(network(0)(segment(ids[:, begin:end])).last) for begin, end in pairwise(bounds)]
    torch.testing.assert_close(found, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)


def test_documents_are_separate_without_memory(ids) -> None:  # type: ignore[no-untyped-def]
    found = rows(network(0)(segment(ids, fresh=(0, 5, 11))).last)
    alone = [rows(network(0)(segment(ids[:, begin:end])).last) for begin, end in pairwise([0, 5, 11, ids.shape[1]])]
    torch.testing.assert_close(found, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)


def test_memory_has_a_fixed_size(ids) -> None:  # type: ignore[no-untyped-def]
    stack = network(4)
    carry = stack(segment(ids[:, :LENGTH])).carry
    carry = stack(segment(ids[:, LENGTH : LENGTH + 2]), carry=carry).carry  # two old ones stay
    assert carry.used.tolist() == [4, 4]
    tokens = stack.embed.tokens[torch.from_numpy(ids[:, LENGTH - 2 : LENGTH + 2])]
    torch.testing.assert_close(carry.states[0], tokens)  # what the first layer read


def test_independent_batches_have_no_memory(ids) -> None:  # type: ignore[no-untyped-def]
    packed = pack(ids.ravel(), np.full(2, ids.shape[1]), pattern=causal)
    states = network(4)(packed)
    assert states.carry is None
    torch.testing.assert_close(states.last, network(0)(packed).last)


def test_fixed_shapes_give_the_same(ids) -> None:  # type: ignore[no-untyped-def]
    stack = network(8)
    capacity = Capacity(tokens=3 * LENGTH + 2, sequences=5, max_length=LENGTH)
    carries, found = [None, None], []
    for start in (0, LENGTH, 2 * LENGTH):
        text = ids[:, start : start + LENGTH]
        states = [
            stack(segment(text, fresh=(2,), capacity=c), carry=carry)
            for c, carry in zip((None, capacity), carries, strict=True)
        ]
        carries = [s.carry for s in states]
        found.append([s.last[: 2 * LENGTH] for s in states])
        assert carries[1].states[0].shape[:2] == (5, 8)
    for plain, fixed in found:
        torch.testing.assert_close(plain, fixed, atol=1e-6, rtol=1e-6)


def test_positions_are_relative(ids) -> None:  # type: ignore[no-untyped-def]
    stack = network(0)
    plain = segment(ids)
    states = stack(plain).last
    plain.positions = plain.positions + 1000
    torch.testing.assert_close(stack(plain).last, states, atol=1e-5, rtol=1e-5)
