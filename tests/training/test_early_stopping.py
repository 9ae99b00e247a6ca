"""Tests of early stopping: it ends training without improvement, keeps the best parameters, and resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.training import prefetch
from pretune.training.budget import Clock
from pretune.training.callbacks import Step
from pretune.training.early_stopping import EarlyStopping
from pretune.training.loop import Training, train
from pretune.training.recipe_sections import Budget, Monitoring, Optimizer, resolve_section
from tests.support.interrupted_training import same, stop_at
from tests.support.one_word_task import start, tune
from tests.support.tiny_training_cases import make


def training(steps: int, evaluate: Callable[[Training], float] | None = None, run: Path | None = None) -> Training:
    made = make("mlm+nsp", steps, run=run)
    if evaluate is not None:
        made.monitor = resolve_section(Monitoring, Monitoring(save_every=1, log_every=100, eval_every=2, patience=2))
        made.evaluate = lambda: {"score": evaluate(made), "other": 1.0}
        made.primary_metric = "score"
    return made


@pytest.mark.not_fast
def test_training_stops_early_with_the_best_parameters(tmp_path: Path) -> None:
    scores = iter([0.1, 0.5, float("nan"), 0.5])  # an equal score is not an improvement
    stopped = training(20, lambda _: next(scores), tmp_path)
    last = train(stopped)
    assert (last["step"], last["best_step"], last["dev/score"]) == (8, 4, 0.5)
    short = training(4)
    train(short)
    same(stopped, short)


@pytest.mark.not_fast
def test_best_parameters_are_kept_when_the_budget_is_spent() -> None:
    scores = iter([float("nan"), 0.1, 0.3])
    whole = training(5, lambda _: next(scores))
    assert train(whole)["best_step"] == 5
    scores = iter([0.9, 0.1, 0.3])
    assert train(training(5, lambda _: next(scores)))["best_step"] == 2


def fluctuating_score(t: Training) -> float:
    """Return a score that goes up and down, as a function of the parameters only."""
    return float(t.root.state_dict()["backbone.embed.tokens"].double().sum() * 1e4) % 1.0


@pytest.mark.not_fast
@pytest.mark.parametrize("averaged", [False, True])
def test_early_stopping_resumes_bit_identically(averaged: bool, tmp_path: Path) -> None:
    def one(folder: str) -> Training:
        made = training(12, fluctuating_score, tmp_path / folder)
        if averaged:
            made.optimizer = resolve_section(Optimizer, Optimizer(lr=3e-3, ema_decay=0.8))
        return made

    whole = one("whole")
    last = train(whole)
    assert 2 <= last["best_step"] < last["step"] <= 12
    for cut in (int(last["best_step"]), int(last["step"]) - 1):
        name = f"cut {cut}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prefetch, "deal", stop_at(prefetch.deal, cut))
            with pytest.raises(InterruptedError):
                train(one(name))
        again = one(name)
        resumed = train(again, resume=True)
        same(whole, again)
        assert {key: resumed[key] for key in ("step", "best_step", "dev/score")} == {
            key: last[key] for key in ("step", "best_step", "dev/score")
        }
    over = one("whole")
    assert (
        train(over, resume=True)["best_step"] == last["best_step"]
    )  # killed after the end, before the result was written
    same(whole, over)


@pytest.mark.not_fast
def test_fine_tuning_evaluates_each_epoch_and_stops_early(tmp_path: Path) -> None:
    run = tune(tmp_path / "run", steps=400, monitor=pt.Monitoring(patience=2))
    seen = [(line["step"], line["dev/accuracy"]) for line in run.metrics() if "dev/accuracy" in line]
    assert [step for step, _ in seen] == [4 * number for number in range(1, len(seen) + 1)]  # 64 rows, 16 per step
    best = max(accuracy for _, accuracy in seen)
    first = next(step for step, accuracy in seen if accuracy == best)
    assert run.results["best_step"] == first == seen[-3][0] and run.results["dev/accuracy"] == best
    (scores,) = pt.predict(run, start() / "train.csv", score=True).facts["scores"]
    assert scores["accuracy"] == best  # the saved model is the best one


def test_patience_needs_dev_examples(tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("text,label\ngood,yes\nbad,no\n", encoding="utf-8")
    with pytest.raises(PretuneError, match=r"monitor\.patience needs dev examples .* --dev"):
        pt.finetune(start() / "start", few, out=tmp_path / "run", monitor=pt.Monitoring(patience=2))
    assert not (tmp_path / "run").exists()
    with pytest.raises(PretuneError, match=r"monitor\.patience applies only to training on labeled examples"):
        pt.pretrain("bert-tiny", start() / "text.txt", out=tmp_path / "run", monitor=pt.Monitoring(patience=2))
    assert not (tmp_path / "run").exists()


def test_frozen_parameters_are_not_copied() -> None:
    layers: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    layers[0].requires_grad_(False)
    best = EarlyStopping(layers, "x", 1, Clock(Budget(steps=2)))
    best.on_evaluate(Step(1, {}, 0.0, []), {"x": 0.0})
    assert set(best.tensors()) == {"1.weight", "1.bias"}


def test_buffers_are_restored_with_the_best_parameters() -> None:
    """Buffers such as batch norm's running statistics and learned quantization ranges belong to the parameters."""
    layers = torch.nn.BatchNorm1d(2)
    best = EarlyStopping(layers, "x", 1, Clock(Budget(steps=2)))
    layers.running_mean.fill_(1.0)  # type: ignore[union-attr]
    best.on_evaluate(Step(1, {}, 0.0, []), {"x": 1.0})
    layers.running_mean.fill_(2.0)  # type: ignore[union-attr]
    layers.weight.data.fill_(2.0)
    best.on_evaluate(Step(2, {}, 0.5, []), {"x": 0.5})
    best.on_end()
    assert layers.running_mean.tolist() == [1.0, 1.0] and layers.weight.tolist() == [1.0, 1.0]  # type: ignore[union-attr]
