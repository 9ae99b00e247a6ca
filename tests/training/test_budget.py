from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretune.objectives.objective import Loss
from pretune.training import loop
from pretune.training.budget import Clock
from pretune.training.cuda_graphs import CudaGraphs
from pretune.training.loop import Training, train
from pretune.training.metrics_log import METRICS, MetricsLog
from pretune.training.optim.schedules import lr_factor
from pretune.training.parallel.distributed import World
from pretune.training.recipe_sections import Budget, Monitoring, Schedule, resolve_section
from tests.support.tiny_training_cases import make


class FakeTime:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def take(self, seconds: float) -> None:
        self.seconds += seconds


def timed(step: float, budget: Budget, run: Path | None = None, evaluation: float | None = None) -> Training:
    """Return a training whose steps and evaluations take the given number of seconds."""
    training, time = make("mlm+nsp", 1, run), FakeTime()
    training.budget, training.now = budget, time
    packs = training.streams.stages[0].packs
    training.root.register_forward_hook(lambda *_: time.take(step / packs))
    if evaluation is not None:

        def evaluate() -> dict[str, float]:
            time.take(evaluation)
            return {"mlm": 1.0}

        training.evaluate, training.evaluate_first = evaluate, True
    return training


def test_budget_in_seconds_ends_with_the_step_that_reaches_it() -> None:
    last = train(timed(step=2.0, budget=Budget(seconds=5)))
    assert last["step"] == 3 and last["seconds"] == pytest.approx(6.0)


def test_step_longer_than_the_budget_is_the_only_one() -> None:
    last = train(timed(step=12.0, budget=Budget(seconds=5)))
    assert last["step"] == 1 and last["seconds"] == pytest.approx(12.0)


def test_evaluation_time_is_not_part_of_the_budget() -> None:
    training = timed(step=2.0, budget=Budget(seconds=9), evaluation=100.0)
    training.monitor = resolve_section(Monitoring, Monitoring(eval_every=2))
    last = train(training)
    assert last["step"] == 5 and last["seconds"] == pytest.approx(10.0)
    assert last["evaluation_seconds"] == pytest.approx(400.0)  # before, after 2 and 4 steps, and at the end


def compiled(first: float, monkeypatch: pytest.MonkeyPatch) -> Training:
    """Return a training that alternates between two objectives, whose first batches take `first` more seconds each."""
    monkeypatch.setattr(loop, "compile_once", lambda _: None)
    training, time = make("mlm|lm", 1, None), FakeTime()
    training.budget, training.now, training.compiled = Budget(seconds=20), time, True
    seen = set()

    def take(_: object, inputs: tuple[Any, ...]) -> None:
        time.take(2.0)
        if str(inputs[0]) not in seen:
            seen.add(str(inputs[0]))
            time.take(first)

    training.root.register_forward_pre_hook(take)
    return training


@pytest.mark.parametrize("first", [0.0, 500.0])
def test_compilation_is_not_part_of_the_budget_and_is_reported(first: float, monkeypatch: pytest.MonkeyPatch) -> None:
    last = train(compiled(first, monkeypatch))
    assert last["compilation_seconds"] == pytest.approx(2 * (first + 2.0))  # the first batch of both streams
    assert last["seconds"] == pytest.approx(20.0) and last["step"] == 6  # of two batches, 2 seconds each


def test_steps_that_are_not_compiled_count_from_the_first() -> None:
    assert "compilation_seconds" not in train(timed(step=2.0, budget=Budget(seconds=6)))


def test_recording_of_cuda_graphs_is_compilation() -> None:
    time = FakeTime()
    clock = Clock(Budget(seconds=10), now=time)

    class Recorder(CudaGraphs):
        def record(self, *_: Any) -> Any:
            time.take(50.0)
            return SimpleNamespace(replay=lambda *_: time.take(2.0), trained=set())

    graphs = Recorder(torch.nn.Linear(1, 1), torch.device("cpu"), lambda: clock.paused("compilation"), pool=None)
    batch: Any = None
    for stream in (0, 1, 0):
        graphs.run(stream, batch, batch, {})
    assert clock.elapsed() == pytest.approx(6.0) and clock.pauses == {"compilation": pytest.approx(100.0)}


def test_loading_is_not_part_of_the_budget_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    training = timed(step=2.0, budget=Budget(seconds=5))
    time: Any = training.now
    training.loading_since = time() - 30.0
    next_step = training.streams.next_step
    slow = iter([70.0])  # the first step reads the data
    monkeypatch.setattr(
        training.streams, "next_step", lambda *given: (time.take(next(slow, 0.0)), next_step(*given))[1]
    )
    last = train(training)
    assert last["loading_seconds"] == pytest.approx(100.0)
    assert last["step"] == 3 and last["seconds"] == pytest.approx(6.0)


def test_time_between_stop_and_resume_is_not_counted(tmp_path: Path) -> None:
    first = timed(step=2.0, budget=Budget(steps=2), run=tmp_path)
    first.monitor = resolve_section(Monitoring, Monitoring(save_every=1))
    train(first)
    again = timed(step=2.0, budget=Budget(seconds=9), run=tmp_path)
    again.now.take(1e6)  # type: ignore[attr-defined]
    last = train(again, resume=True)
    assert last["step"] == 5 and last["seconds"] == pytest.approx(10.0)


def test_first_step_of_a_budget_in_seconds_has_a_learning_rate(tmp_path: Path) -> None:
    """The progress within the budget includes the current step, so that few long steps are not all spent on warmup."""
    training = timed(step=2.0, budget=Budget(seconds=10), run=tmp_path)
    training.schedule, training.monitor = (
        Schedule("linear", 0.4, 0.0),
        resolve_section(Monitoring, Monitoring(log_every=1)),
    )
    train(training)
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    shares = [(0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)]
    peak = training.optimizer.lr or 0.0
    expected = [peak * lr_factor(training.schedule, *share) for share in shares]
    assert [line["lr"] for line in lines] == pytest.approx(expected)
    assert lines[0]["lr"] == pytest.approx(peak / 2)


def log_lines(tmp_path: Path, steps: list[tuple[float, float]], lines: set[int], interval: int) -> list[dict[str, Any]]:
    """Return the log lines of steps with these losses and numbers of targets, written after the steps in `lines`."""
    clock = Clock(Budget(steps=len(steps)), now=lambda: 0.0)
    log = MetricsLog(tmp_path, World(), clock, torch.device("cpu"), interval)
    for number, (loss, targets) in enumerate(steps, 1):
        step = Loss({"classify": torch.tensor(loss * targets)}, {"classify": 1.0})
        log.add([step], {"classify": targets}, ["classify"], clock.used)
        log.watch(number, [], torch.tensor(1.0))
        clock.add(tokens=10.0, flops=1.0, seconds=float(number))
        if number in lines:
            log.write(0.1, torch.tensor(1.0))
    log.flush()
    return [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]


def test_last_loss_is_the_mean_over_an_interval(tmp_path: Path) -> None:
    steps = [(1.0, 32.0)] * 10 + [(9.0, 1.0)]  # the last batch of an epoch has one row
    first, last = log_lines(tmp_path, steps, lines={10, 11}, interval=10)
    assert first["classify"] == pytest.approx(1.0)
    assert last["classify"] == pytest.approx((9 * 32 * 1.0 + 9.0) / (9 * 32 + 1))
    assert last["tokens_per_second"] == pytest.approx(10.0)


def test_each_step_is_in_one_log_line(tmp_path: Path) -> None:
    steps = [(float(number), 4.0) for number in range(1, 7)]
    assert [line["classify"] for line in log_lines(tmp_path, steps, {2, 4, 6}, interval=2)] == pytest.approx(
        [1.5, 3.5, 5.5]
    )
