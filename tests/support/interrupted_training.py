"""Interrupt training at a step, and compare the weights of two runs."""

from __future__ import annotations

from typing import Any

import torch

from pretune.training.loop import Training


def same(one: Training, other: Training) -> None:
    """Assert that two trained models have equal weights."""
    for (name, a), b in zip(one.root.state_dict().items(), other.root.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def stop_at(deal: Any, step: int) -> Any:
    """Wrap `deal` so that it raises InterruptedError when it is called for the given step."""
    calls = iter(range(1000))

    def dealing(*arguments: Any) -> Any:
        if next(calls) == step:
            raise InterruptedError
        return deal(*arguments)

    return dealing
