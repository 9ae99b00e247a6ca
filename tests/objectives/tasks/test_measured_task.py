"""Tests of tasks with custom metrics: computed with the task's own, chosen as the primary metric, shown in the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.measured_task import measured_task
from pretune.text.examples.labeled import LabeledRows
from tests.support.one_word_task import share_here, tune

ROWS = LabeledRows(Path("x.csv"), {}, ["…"] * 3, labels=["a", "b", "b"])
ANSWERS = [{"label": "a"}, {"label": "a"}, {"label": "b"}]
TASK = Classify(labels=("a", "b"))


def share_of_yes(gold: Sequence[str], predicted: Sequence[str]) -> float:
    assert set(gold) == {"yes", "no"}
    return sum(label == "yes" for label in predicted) / len(predicted)


def test_custom_metrics_come_beside_those_of_the_task() -> None:
    task = measured_task(TASK, None, {"wrong": lambda gold, predicted: sum(map(str.__ne__, gold, predicted))})
    metrics = task.metrics(ANSWERS, ROWS)
    assert metrics["wrong"] == 1.0 and metrics["accuracy"] == pytest.approx(2 / 3)
    assert task.primary_metric == "accuracy" and task.metric_sums(ANSWERS, ROWS) is None


@pytest.mark.parametrize(("metric", "value"), [("f1", 2 / 3), ("matthews", 0.5), ("macro_f1", 2 / 3), ("mcc", 0.5)])
def test_primary_metric_is_one_of_the_task_or_a_registered_one(metric: str, value: float) -> None:
    task = measured_task(TASK, metric, {})
    assert task.primary_metric == metric and task.metrics(ANSWERS, ROWS)[metric] == pytest.approx(value)


def test_own_metric_of_a_task_goes_before_a_registered_one_of_that_name() -> None:
    several = Classify(labels=("a", "b"), multi_label=True)
    rows = LabeledRows(Path("x.csv"), {}, ["…"], labels=[("a", "b")])
    task = measured_task(several, "macro_f1", {})
    assert task.metrics([{"labels": ["a"]}], rows) == several.metrics([{"labels": ["a"]}], rows)


def test_task_without_other_metrics_is_not_wrapped() -> None:
    assert measured_task(TASK, None, {}) is TASK
    with pytest.raises(PretuneError, match="rename the custom metric"):
        measured_task(TASK, None, {"accuracy": share_of_yes}).metrics(ANSWERS, ROWS)
    with pytest.raises(PretuneError, match="lower values are better"):
        measured_task(TASK, "mse", {})


def test_custom_primary_metric_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = share_here(monkeypatch)
    run = tune(
        tmp_path / "run", steps=3, metric="share_of_yes", metrics={"share_of_yes": share_of_yes}, num_seeds=2, devices=2,
        report=True,
    )  # fmt: skip
    assert shared == [2]
    dev = [name for name in run.results if name.startswith("dev/")]
    assert dev[0] == "dev/share_of_yes" and "dev/accuracy" in dev
    assert run.results["seeds"]["scores"][run.results["seeds"]["best"]] == run.results["dev/share_of_yes"]
    assert "share_of_yes" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert run.predict(["good stone"])[0]["label"] in {"yes", "no"}


def test_unknown_metric_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"--metric f2: the task 'classify' has no such metric.*f1"):
        tune(tmp_path / "run", metric="f2")
    assert not (tmp_path / "run").exists()


def test_early_stopping_watches_the_chosen_metric(tmp_path: Path) -> None:
    never_better = {"constant": lambda gold, predicted: 1.0}
    monitor = pt.Monitoring(patience=2, eval_every=1)
    run = tune(tmp_path / "run", steps=20, metric="constant", metrics=never_better, monitor=monitor)
    assert run.results["best_step"] == 1 and run.results["step"] == 3
