"""Tests of the callbacks of the training loop: the order of the hooks, vetoed updates, and ending a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune import PretuneError
from pretune.training import callbacks, loop
from pretune.training.callbacks import Callback, Step
from pretune.training.recipe_sections import Monitoring, resolve_section
from tests.support.one_word_task import tune
from tests.support.tiny_training_cases import make


class Recorder(Callback):
    """A callback that records the hooks the loop calls."""

    def __init__(self, allow: bool = True, finish_after: int = 99) -> None:
        self.calls: list[str] = []
        self.allow, self.finish_after = allow, finish_after

    def on_start(self, training: loop.Training) -> None:
        assert training.root.training
        self.calls.append("on_start")

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


def train(recorder: Recorder, steps: int = 2) -> tuple[Any, dict[str, float]]:
    """Train a tiny model with an additional callback, and return the model and the results."""
    training = make("mlm+nsp", steps)
    training.callbacks = [recorder]
    training.monitor = resolve_section(Monitoring, Monitoring(save_every=0, log_every=1, eval_every=2))
    training.evaluate = lambda: {"score": 1.0}
    return training.root, loop.train(training)


def test_hooks_are_called_in_order() -> None:
    recorder = Recorder()
    _, results = train(recorder)
    step = ["after_backward", "allow_update", "after_update"]
    first = ["before_step 1", *step, "after_step, last: False"]
    second = ["before_step 2", *step, "evaluating", "on_evaluate", "after_step, last: True"]
    assert recorder.calls == ["on_start", "start", *first, *second, "stop", "on_end"]
    assert results["recorded"] == len(recorder.calls) and results["step"] == 2


def test_vetoed_update_leaves_the_parameters_unchanged() -> None:
    trained, _ = train(Recorder(allow=False))
    for name, tensor in make("mlm+nsp", 1).root.tensors().items():
        torch.testing.assert_close(trained.tensors()[name], tensor, rtol=0, atol=0, msg=name)


def test_finished_callback_ends_the_training() -> None:
    recorder = Recorder(finish_after=3)
    train(recorder, steps=9)
    assert [call for call in recorder.calls if call.startswith("before_step")][-1] == "before_step 3"


def test_callback_that_has_ended_a_training_sees_the_next_one() -> None:
    recorder = Recorder(finish_after=1)
    train(recorder, steps=3)
    train(recorder, steps=3)
    assert recorder.calls.count("before_step 1") == 2 and "before_step 2" not in recorder.calls


class Counter(Callback):
    """A callback that counts steps, and ends training after some."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.steps: list[int] = []
        self.stop_after = stop_after

    def after_step(self, step: Step) -> None:
        self.steps.append(step.number)
        self.finished = step.number >= self.stop_after


def test_callback_sees_every_step_of_each_seed_and_can_stop_fine_tuning(tmp_path: Path) -> None:
    every, stopping = Counter(), Counter(stop_after=3)
    tune(tmp_path / "all", steps=5, callbacks=[every])
    assert every.steps == [1, 2, 3, 4, 5]
    run = tune(tmp_path / "stopped", steps=5, callbacks=[stopping], num_seeds=2)
    assert stopping.steps == [1, 2, 3, 1, 2, 3] and run.results["step"] == 3


def test_callbacks_by_name_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        callbacks, "entry_point_objects", lambda group: {"count": Counter} if group == callbacks.PLUGINS else {}
    )
    (found,) = callbacks.find_callbacks(["count"])
    assert isinstance(found, Counter)
    with pytest.raises(PretuneError, match=r"no callback 'cuont'.*count"):
        callbacks.find_callbacks(["cuont"])
    with pytest.raises(PretuneError, match="is not a callback"):
        callbacks.find_callbacks([Counter])  # type: ignore[list-item]  # the class instead of an instance
