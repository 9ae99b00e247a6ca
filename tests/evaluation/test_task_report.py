"""Tests of the report of a fine-tuned model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.evaluation.baseline_comparison import BaselineComparison, compare_run
from pretune.evaluation.calibration_error import calibration
from pretune.evaluation.confidence_intervals import bootstrap_intervals
from pretune.evaluation.task_report import TaskReport, write_report
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Classify
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, TaskData
from pretune.training.run_folder import Run

TASK = Classify(labels=("no", "yes"))


def rows(count: int) -> LabeledRows:
    texts = [f"{'good' if i % 2 else 'bad'} <b>thing</b> {i}" for i in range(count)]
    labels = ["yes" if i % 2 else "no" for i in range(count)]
    return LabeledRows(Path("dev.csv"), {}, texts, labels=labels, lines=list(range(2, count + 2)))


def answers(found: LabeledRows, wrong: set[int]) -> list[dict[str, object]]:
    made = []
    for row, label in enumerate(found.labels or []):
        given = {"yes": "no", "no": "yes"}[label] if row in wrong else label
        sure = 0.6 + 0.3 * (row in wrong)
        other = {"yes": "no", "no": "yes"}[given]
        made.append({"label": given, "probability": sure, "probabilities": {given: sure, other: 1 - sure}})
    return made


def make_run(folder: Path) -> Run:
    folder.mkdir()
    (folder / "recipe.yaml").write_text("a: 1\n")
    (folder / "results.json").write_text('{"model": "m", "objective": "classify"}')
    (folder / "metrics.jsonl").write_text('{"step": 1, "classify": 0.7}\n{"step": 2, "classify": 0.5}\n')
    return Run(folder)


@pytest.mark.not_fast
def test_report_matches_the_predictions(tmp_path: Path) -> None:
    dev = rows(40)
    material = TaskData(parse_objective("classify"), TASK, TASK, rows(60), dev, [])
    report = TaskReport(make_run(tmp_path / "run"), BaselineComparison(material, answers(dev, {3, 8})))
    assert report.scores()[0]["this model"] == "0.9500"
    low, high = (float(x) for x in report.scores()[0]["95% interval"].split(" – "))
    assert low < 0.95 < high
    assert [row["metric"] for row in report.scores()] == ["accuracy", "f1 (of 'yes')", "matthews"]
    controls = {row["learner"]: row["accuracy"] for row in report.baseline_scores}
    assert controls["this model"] == 0.95 and controls["always 'no'"] == 0.5 and controls["a bag of words"] == 1.0
    assert [row["place"] for row in report.worst_answers()] == ["line 5", "line 10"]
    page = "".join(report.sections())
    assert "&lt;b&gt;thing" in page and "<b>thing" not in page
    assert ">19<" in report.confusion() and ">1<" in report.confusion()


@pytest.mark.not_fast
def test_no_report_is_written_without_predictions(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    material = TaskData(parse_objective("classify"), TASK, TASK, rows(60), rows(4), [])
    assert write_report(run, compare_run(run, material)) is None
    assert run.results == {"model": "m", "objective": "classify"}
    lines = ['{"label": "no", "probability": 0.9, "probabilities": {"no": 0.9, "yes": 0.1}}'] * 4
    (run.folder / DEV_PREDICTIONS).write_text("\n".join(lines) + "\n")
    assert write_report(run, compare_run(run, material)) == run.folder / "report.html"
    assert run.results["baseline/accuracy"] == 1.0
    assert list(run.table())[:4] == ["run", "interval/accuracy", "baseline/accuracy", "warning"]


def test_confidence_intervals_shrink_with_more_examples() -> None:
    widths = []
    for count in (40, 640):
        dev = rows(count)
        low, high = bootstrap_intervals(TASK, answers(dev, set(range(0, count, 4))), dev)["accuracy"]
        assert low < 0.75 < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.4)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_calibration_error_is_the_mean_gap_of_its_bins(pairs: list[tuple[float, bool]]) -> None:
    sure, right = zip(*pairs, strict=True)
    error, bins = calibration(sure, right)
    assert sum(bin.count for bin in bins) == len(pairs)
    assert 0 <= error <= 1
    assert error >= abs(np.mean(sure) - np.mean(right)) - 1e-9
