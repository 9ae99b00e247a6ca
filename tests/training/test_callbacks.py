"""Tests of the callbacks of the training loop: the order of the hooks, vetoed updates, and ending a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pretune.training import loop
from pretune.training.callbacks import Callback, Step
from pretune.training.recipe_sections import Monitoring, resolve_section
from tests.support.tiny_training_cases import make


class Recorder(Callback):
    """A callback that records the hooks the loop calls."""

    def __init__(self, allow: bool = True, finish_after: int = 99) -> None:
        self.calls: list[str] = []
        self.allow, self.finish_after = allow, finish_after

    @contextmanager
    def running(self) -> Iterator[None]:
        self.calls.append("start")
        yield
        self.calls.append("stop")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.calls.append("evaluating")
        yield

    def before_step(self, step: Step) -> None:
        assert not step.losses and step.totals["tokens"] > 0
        self.calls.append(f"before_step {step.number}")

    def after_backward(self, step: Step) -> None:
        assert len(step.losses) == len(step.packs) and step.gradient_norm is None
        self.calls.append("after_backward")

    def allow_update(self, step: Step) -> bool:
        assert step.gradient_norm is not None
        self.calls.append("allow_update")
        return self.allow

    def after_update(self, step: Step) -> None:
        assert step.updated == self.allow
        self.calls.append("after_update")

    def on_evaluate(self, step: Step, metrics: Mapping[str, float]) -> None:
        assert metrics == {"score": 1.0}
        self.calls.append("on_evaluate")

    def after_step(self, step: Step) -> None:
        self.finished = step.number >= self.finish_after
        self.calls.append(f"after_step, last: {step.last}")

    def on_end(self) -> dict[str, float]:
        self.calls.append("on_end")
        return {"recorded": float(len(self.calls))}


def train(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, steps: int = 2) -> tuple[Any, dict[str, float]]:
    """Train a tiny model with an additional callback, and return the model and the results."""
    make_callbacks = loop.make_callbacks
    monkeypatch.setattr(loop, "make_callbacks", lambda *arguments: [*make_callbacks(*arguments), recorder])
    training = make("mlm+nsp", steps)
    training.monitor = resolve_section(Monitoring, Monitoring(save_every=0, log_every=1, eval_every=2))
    training.evaluate = lambda: {"score": 1.0}
    return training.root, loop.train(training)


def test_hooks_are_called_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    _, results = train(recorder, monkeypatch)
    step = ["after_backward", "allow_update", "after_update"]
    first = ["before_step 1", *step, "after_step, last: False"]
    second = ["before_step 2", *step, "evaluating", "on_evaluate", "after_step, last: True"]
    assert recorder.calls == ["start", *first, *second, "stop", "on_end"]
    assert results["recorded"] == len(recorder.calls) and results["step"] == 2


def test_vetoed_update_leaves_the_parameters_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, _ = train(Recorder(allow=False), monkeypatch)
    for name, tensor in make("mlm+nsp", 1).root.tensors().items():
        torch.testing.assert_close(trained.tensors()[name], tensor, rtol=0, atol=0, msg=name)


def test_finished_callback_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(finish_after=3)
    train(recorder, monkeypatch, steps=9)
    assert [call for call in recorder.calls if call.startswith("before_step")][-1] == "before_step 3"
