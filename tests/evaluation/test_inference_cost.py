"""Tests that time and memory are measured."""

from __future__ import annotations

import mmap

import torch

from pretune.evaluation.inference_cost import STATUS, measure_cost


def test_allocated_memory_is_measured() -> None:
    with measure_cost(torch.device("cpu")) as little:
        pass
    with measure_cost(torch.device("cpu")) as cost:
        taken = mmap.mmap(-1, 64_000_000)  # new pages, whereas an array may get memory that the process has kept
        taken.write(bytes(len(taken)))
    assert cost.seconds > 0
    if STATUS.is_file():
        assert little.memory and cost.memory and cost.memory > little.memory + 40_000_000
