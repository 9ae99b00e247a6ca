"""Tests of the learning rate range test: its suggestion trains, and it leaves no trace in the model and the data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.runtime.parsing import read_mapping
from pretune.training import loop, lr_finder
from pretune.training.lr_finder import RANGE_TEST, RangeTest, find_lr, suggest_lr, with_found_lr
from pretune.training.recipe_sections import Optimizer, resolve_section
from tests.support.one_word_task import tune
from tests.support.tiny_training_cases import make


def training(lr: Any = "auto", steps: int = 8, run: Path | None = None) -> loop.Training:
    """Return the training of a tiny model with SGD, which diverges at large learning rates and creeps at small ones."""
    made = make("mlm+nsp", steps, run)
    made.optimizer = resolve_section(Optimizer, Optimizer("sgd", lr=lr, max_grad_norm=0.0))
    return made


@cache
def found() -> RangeTest:
    """Return the result of a range test."""
    return find_lr(training())


def test_rates_ten_times_larger_and_smaller_train_worse() -> None:
    smaller, chosen, larger = (loop.train(training(found().suggested * factor))["mlm"] for factor in (0.1, 1.0, 10.0))
    assert chosen < smaller and not larger < chosen


def test_range_test_leaves_model_data_and_random_numbers_unchanged() -> None:
    t = training()
    before = {name: tensor.clone() for name, tensor in t.root.tensors().items()}
    positions, mode, state = t.streams.state(), t.root.training, torch.get_rng_state()
    first = find_lr(t, steps=8)
    for name, tensor in t.root.tensors().items():
        assert torch.equal(tensor, before[name]), name
    assert t.streams.state() == positions and t.root.training == mode and torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in t.root.parameters())
    assert find_lr(t, steps=8) == first  # deterministic
    # A training after a range test gives what it gives without one.
    t.optimizer = replace(t.optimizer, lr=0.1)
    assert {**loop.train(t), "seconds": 0, "tokens_per_second": 0} == {
        **loop.train(training(0.1)), "seconds": 0, "tokens_per_second": 0
    }  # fmt: skip


def test_range_test_ends_when_the_loss_diverges() -> None:
    curve = found().curve
    assert len(curve) <= 40 and curve[0][0] == pytest.approx(1e-4) and curve[-1][0] <= 10.0


def test_suggestion_is_below_the_lowest_loss_of_a_noisy_curve() -> None:
    rates = [10 ** (-5 + 0.1 * number) for number in range(40)]
    losses = [-0.5 if 1e-3 < rate < 2e-3 else 3.0 if rate > 5e-3 else 0.01 * (-1) ** n for n, rate in enumerate(rates)]
    assert 1e-4 < suggest_lr(list(zip(rates, losses, strict=True))) < 1e-3


def test_found_rate_is_saved_and_read_by_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(lr_finder, "find_lr", lambda t: calls.append(1) or RangeTest(0.25, [(0.1, 0.0)]))
    first, second = (with_found_lr(training(run=tmp_path)).optimizer.lr for _ in range(2))
    assert first == second == 0.25 and len(calls) == 1
    assert read_mapping(tmp_path / RANGE_TEST, "a range test") == {"suggested": 0.25, "curve": [[0.1, 0.0]]}
    assert with_found_lr(training(0.1)).optimizer.lr == 0.1


@pytest.mark.end_to_end
def test_finetune_finds_a_rate_that_learns_the_task(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", steps=60, optimizer=pt.Optimizer(lr="auto"))
    rate = read_mapping(tmp_path / "run" / RANGE_TEST, "a range test")["suggested"]
    assert 1e-5 < rate < 0.05 and run.results["dev/accuracy"] > 0.9


def test_muon_has_two_rates(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match="two learning rates"):
        find_lr(replace(training(), optimizer=Optimizer("muon", lr="auto")))
