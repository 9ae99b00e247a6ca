"""Tests that time and memory are measured."""

from __future__ import annotations

import numpy as np
import torch

from pretune.evaluation.inference_cost import STATUS, measure_cost


def test_allocated_memory_is_measured() -> None:
    with measure_cost(torch.device("cpu")) as little:
        pass
    with measure_cost(torch.device("cpu")) as cost:
        taken = np.ones(8_000_000)
    assert cost.seconds > 0 and len(taken)
    if STATUS.is_file():
        assert little.memory and cost.memory and cost.memory > little.memory + 40_000_000
