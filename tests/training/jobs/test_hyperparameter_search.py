"""Tests of hyperparameter search: trials are saved, a search resumes, and the best model and importances are reported."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.training.jobs.hyperparameter_search import HyperparameterSearch, SearchRange
from pretune.training.jobs.search_space import count_layers, make_space
from pretune.training.run_folder import Run, finish_run, start_run
from tests.support.one_word_task import start

pytest.importorskip("optuna")

SPACE: dict[str, Any] = {"lr": SearchRange(1e-5, 1e-2, log=True), "epochs": SearchRange(1, 10), "batch": (8, 16)}
DEFAULTS = {"lr": 1e-4, "epochs": 3, "batch": 16}


def objective_value(settings: dict[str, Any]) -> float:
    """Return a score that is best at lr=1e-3, depends little on epochs and not at all on the batch size."""
    return 1.0 - 0.2 * abs(math.log10(settings["lr"]) + 3) + 0.001 * settings["epochs"]


class Trainer:
    """Pretend to train; can be interrupted, and can fail."""

    def __init__(self, interrupt: int | None = None, fails: int | None = None) -> None:
        self.interrupt, self.fails, self.calls = interrupt, fails, 0

    def __call__(self, settings: dict[str, Any], folder: Path) -> Run:
        self.calls += 1
        start_run(folder, "finetune", settings, resume=True)
        if self.calls == self.interrupt:
            raise KeyboardInterrupt
        if self.calls == self.fails:
            raise PretuneError("the gradient is not a number")
        (folder / "model.safetensors").write_text(json.dumps(settings))
        return finish_run(folder, {"dev/accuracy": objective_value(settings)})


def search(out: Path, **options: Any) -> HyperparameterSearch:
    out.mkdir(exist_ok=True)
    return HyperparameterSearch(out, SPACE, DEFAULTS, "accuracy", **options)


@pytest.mark.not_fast
def test_interrupted_search_resumes_with_the_same_settings(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole")
    whole.run(Trainer(), trials=9)
    for trials in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path / "parts").run(Trainer(interrupt=2), trials=trials)
        cut = search(tmp_path / "parts")
        assert not cut.trials[-1].is_done  # it is recorded, and starts anew
        cut.run(Trainer(), trials=trials)
    assert [trial.settings for trial in cut.trials] == [trial.settings for trial in whole.trials]
    assert whole.trials[0].settings == DEFAULTS
    idle = Trainer()
    search(tmp_path / "parts").run(idle, trials=9)
    assert idle.calls == 0
    other = search(tmp_path / "other", seed=1)
    other.run(Trainer(), trials=3)
    assert [t.settings for t in other.trials] != [t.settings for t in whole.trials[:3]]


@pytest.mark.not_fast
def test_best_model_is_kept_and_other_weights_are_deleted(tmp_path: Path) -> None:
    made = search(tmp_path)
    made.run(Trainer(), trials=8)
    best = max(made.trials, key=lambda trial: trial.value or 0.0)
    assert made.best == best and best.value is not None and best.value > objective_value(DEFAULTS)
    assert json.loads((tmp_path / "best" / "model.safetensors").read_text()) == best.settings
    assert Run(tmp_path / "best").results["dev/accuracy"] == best.value
    folders = sorted((tmp_path / "trials").iterdir())
    assert [Run(folder).recipe for folder in folders] == [trial.settings for trial in made.trials]
    assert not list((tmp_path / "trials").rglob("*.safetensors"))


def test_finished_trial_that_was_not_recorded_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HyperparameterSearch, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path).run(Trainer(), trials=1)
    idle = Trainer()
    again = search(tmp_path)
    again.run(idle, trials=1)
    assert idle.calls == 0 and again.best.value == objective_value(DEFAULTS)
    assert (tmp_path / "best" / "model.safetensors").is_file()


def test_trials_may_fail_except_the_first(tmp_path: Path) -> None:
    made = search(tmp_path / "a")
    made.run(Trainer(fails=2), trials=4)
    assert [trial.error for trial in made.trials] == [None, "the gradient is not a number", None, None]
    with pytest.raises(PretuneError, match="not a number"):
        search(tmp_path / "b").run(Trainer(fails=1), trials=4)


@pytest.mark.not_fast
def test_parallel_trials_do_not_depend_on_completion_order(tmp_path: Path) -> None:
    class Slow(Trainer):
        def __call__(self, settings: dict[str, Any], folder: Path) -> Run:
            time.sleep(self.delays.pop())
            return super().__call__(settings, folder)

    found = []
    for name, delays in {"a": [0.0] * 9, "b": [0.0, 0.03] * 6}.items():
        trainer = Slow()
        trainer.delays = delays  # type: ignore[attr-defined]
        made = search(tmp_path / name)
        made.run(trainer, trials=3, at_once=2)
        again = search(tmp_path / name)  # it continues as if it had not ended
        again.run(trainer, trials=8, at_once=2)
        assert [trial.number for trial in again.finished] == list(range(8))
        found.append([trial.settings for trial in again.trials])
    assert found[0] == found[1]
    alone = search(tmp_path / "alone")
    alone.run(Trainer(), trials=6)
    assert [trial.settings for trial in alone.trials[:5]] == found[0][:5]  # those sampled at random


def test_search_stops_after_the_given_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr("pretune.training.jobs.hyperparameter_search.monotonic", lambda: next(ticks))
    made = search(tmp_path)
    made.run(Trainer(), seconds=35)  # ten seconds per trial
    assert len(made.trials) == 3


@pytest.mark.not_fast
def test_setting_importances_identify_the_learning_rate(tmp_path: Path) -> None:
    made = search(tmp_path)
    made.run(Trainer(), trials=4)
    assert made.setting_importances() == []
    made.run(Trainer(), trials=14)
    first, *rest = made.setting_importances()
    assert first["hyperparameter"] == "lr" and first["importance"] > 0.6
    assert sum(row["importance"] for row in (first, *rest)) == pytest.approx(1.0)


def test_given_settings_are_not_searched() -> None:
    space, usual = make_space(4, {"lr": 1e-4, "epochs": None, "layers": "gradual"})
    assert set(space) == set(usual) == {"epochs", "batch", "layer_decay"}
    assert "layers" not in make_space(1, {})[0]
    with pytest.raises(PretuneError, match="nothing to search; remove at least one"):
        make_space(1, {"lr": 1e-4, "epochs": 1, "batch": 8, "layer_decay": 0.9})
    assert count_layers("bert-tiny") == 2 and count_layers(str(start() / "start")) == 4


@pytest.mark.not_fast
def test_tune_finetunes_models_and_keeps_the_best(tmp_path: Path) -> None:
    folder, out = start(), tmp_path / "tuned"
    options: dict[str, Any] = {"dev": folder / "train.csv", "out": out, "epochs": 1}
    found = pt.tune(folder / "start", folder / "train.csv", num_trials=2, **options)
    first = [row["trial"] for row in found]
    found = pt.tune(folder / "start", folder / "train.csv", num_trials=3, **options)
    assert (first, [row["trial"] for row in found]) == ([0, 1], [0, 1, 2])
    best = found.facts["best"]
    assert found.facts["importances"] == "too few different trials to tell"
    (scores,) = pt.predict(best["model"], folder / "train.csv", score=True).facts["scores"]
    assert scores["accuracy"] == best["accuracy"] == max(row["accuracy"] for row in found)
    recipe = Run(out / "trials" / "001").recipe
    assert recipe["optimizer"]["lr"] == found[1]["lr"] and recipe["epochs"] == 1 and recipe["seed"] == 0
    assert recipe["strategy"] == ("full" if found[1]["layers"] == 4 else f"top({found[1]['layers']})")
    with pytest.raises(PretuneError, match=r"was started with other settings \(epochs\)"):
        pt.tune(folder / "start", folder / "train.csv", num_trials=3, **{**options, "epochs": 2})


def test_search_that_cannot_start_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = start(), tmp_path / "tuned"
    with pytest.raises(PretuneError, match=r"nowhere\.csv: no such file"):
        pt.tune(folder / "start", "nowhere.csv", dev=folder / "train.csv", out=out, num_trials=1)
    assert not out.exists()
    with pytest.raises(PretuneError, match="give --num-trials or --max-seconds"):
        pt.tune(folder / "start", folder / "train.csv", dev=folder / "train.csv", out=out)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(PretuneError, match=r"pip install 'pretune\[tune\]'"):
        pt.tune(folder / "start", folder / "train.csv", dev=folder / "train.csv", out=out, num_trials=1)
    assert not out.exists()
