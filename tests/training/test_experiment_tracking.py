"""Tests of experiment trackers: TensorBoard's event files, and the calls of a fake Weights & Biases."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.training.experiment_tracking import TENSORBOARD, open_trackers
from pretune.training.recipe_sections import Monitoring, resolve_section
from tests.support.one_word_task import tune


class FakeWandb(ModuleType):
    """The part of wandb that pretune uses, which records the calls."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.settings: list[dict[str, Any]] = []
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **settings: Any) -> FakeWandb:
        self.settings.append(settings)
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.lines.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def test_wandb_gets_settings_losses_and_evaluations(tmp_path: Path, wandb: FakeWandb) -> None:
    run = tune(tmp_path / "run", steps=6, monitor=pt.Monitoring(log_to=("wandb",), log_every=2, eval_every=3))
    (settings,) = wandb.settings
    assert settings["project"] == "pretune" and settings["config"]["optimizer.lr"] == 3e-3
    assert [step for step, line in wandb.lines if "classify" in line] == [2, 4, 6]
    assert [step for step, line in wandb.lines if "dev/accuracy" in line] == [3, 6]
    assert wandb.lines[-1][1]["dev/accuracy"] == run.results["dev/accuracy"] and wandb.finished == 1


def test_final_evaluation_is_logged_without_eval_every(tmp_path: Path, wandb: FakeWandb) -> None:
    run = tune(tmp_path / "run", steps=2, monitor=pt.Monitoring(log_to=("wandb",)))
    assert wandb.lines[-1][1]["dev/accuracy"] == run.results["dev/accuracy"]


def test_resumed_run_continues_the_same_wandb_run(tmp_path: Path, wandb: FakeWandb) -> None:
    for step in (0, 5, 0):
        open_trackers(["wandb"], tmp_path, step)
    first, resumed, new = (settings["id"] for settings in wandb.settings)
    assert first == resumed != new


def test_trackers_are_closed_when_training_fails(tmp_path: Path, wandb: FakeWandb) -> None:
    class Failing(pt.Callback):
        def after_update(self, step: Any) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        tune(tmp_path / "run", steps=2, monitor=pt.Monitoring(log_to=("wandb",)), callbacks=[Failing()])
    assert wandb.finished == 1


def test_missing_package_is_an_error_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(PretuneError, match=r"--log-to wandb needs wandb.*pretune\[wandb\]"):
        tune(tmp_path / "run", steps=2, monitor=pt.Monitoring(log_to=("wandb",)))
    assert not (tmp_path / "run").exists()


def test_no_tracker_is_opened_unless_asked_for(tmp_path: Path) -> None:
    assert open_trackers((), tmp_path, 0) == [] and resolve_section(Monitoring, None).log_to is None


def test_tensorboard_event_files_have_losses_evaluations_and_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tune(tmp_path / "run", steps=4, monitor=pt.Monitoring(log_to=("tensorboard",), log_every=2))
    events = EventAccumulator(str(tmp_path / "run" / TENSORBOARD))
    events.Reload()
    assert [event.step for event in events.Scalars("classify")] == [2, 4]
    (final,) = events.Scalars("dev/accuracy")
    assert final.step == 4 and final.value == pytest.approx(run.results["dev/accuracy"])
    assert "settings/text_summary" in events.Tags()["tensors"]
    assert any("hparams" in name for name in events.summary_metadata)


class FakeWriter:
    """The part of SummaryWriter that pretune uses, which records the calls."""

    def __init__(self, folder: str, purge_step: int | None = None) -> None:
        self.calls: list[Any] = [purge_step]
        self.file_writer = self
        written.append(self)

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.calls.append(text)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.calls.append((name, value, step))

    def add_summary(self, summary: Any) -> None:
        self.calls.append(summary)

    def close(self) -> None:
        self.calls.append("closed")


written: list[FakeWriter] = []


def test_tensorboard_writer_gets_all_metrics_and_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, summary = ModuleType("torch.utils.tensorboard"), ModuleType("torch.utils.tensorboard.summary")
    board.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    summary.hparams = lambda settings, metrics: [(settings, metrics)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.summary", summary)
    (tmp_path / "recipe.yaml").write_text("seed: 3\noptimizer: {lr: 0.1}\n")
    (tracker,) = open_trackers(["tensorboard"], tmp_path, 7)
    tracker.log_metrics(8, {"classify": 0.5, "dev/accuracy": 0.75})
    tracker.close()
    purged, text, *scalars, hparams, last = written[-1].calls
    assert purged == 8 and "| optimizer.lr | 0.1 |" in text and last == "closed"
    assert scalars == [("classify", 0.5, 8), ("dev/accuracy", 0.75, 8)]
    assert hparams == ({"seed": 3, "optimizer.lr": 0.1}, {"dev/accuracy": 0.0})
