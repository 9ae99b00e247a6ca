from __future__ import annotations

import json
from pathlib import Path

from pretune.metrics import positive_class, score
from pretune.objectives import parse_objective
from pretune.runtime.console import format_result
from pretune.text.examples.labeled import LabeledRows
from pretune.training.metrics_log import METRICS
from pretune.training.run_folder import RECIPE, Run, finish_run


def make_finished_run(folder: Path, results: dict[str, object]) -> Run:
    folder.mkdir()
    (folder / RECIPE).write_text("seed: 0\n")
    line = {"step": 2, "flops": 1e9, "seconds": 3.0, "classify": 0.7, "gradient_norm": 1.5}
    (folder / METRICS).write_text(json.dumps(line) + "\n")
    return finish_run(folder, results)


def test_scores_are_listed_first_and_costs_last(tmp_path: Path) -> None:
    results = {
        "model": "m", "rows": 47, "step": 2, "flops": 1e9, "seconds": 3.0, "classify": 0.7, "gradient_norm": 1.5,
        "dev/accuracy": 0.9, "dev/f1": 0.8, "positive_class": "yes",
    }  # fmt: skip
    run = make_finished_run(tmp_path / "run", results)
    lines = [line.split("  ")[0] for line in format_result(run.table()).splitlines() if not line.startswith(" ")]
    assert lines == ["run", "dev/accuracy", "dev/f1 (of 'yes')", "finished", "model", "rows", "seconds", "train/classify", "details"]  # fmt: skip
    assert list(run.table()["details"]) == ["step", "flops", "gradient_norm"]
    assert run.describe()["dev/f1"] == 0.8  # machine-readable names do not change


def test_f1_names_its_class_for_each_task(tmp_path: Path) -> None:
    run = make_finished_run(tmp_path / "run", {"dev/a/f1": 0.5, "dev/b/f1": 0.6, "positive_class": {"a": "yes"}})
    assert list(run.table())[1:3] == ["dev/a/f1 (of 'yes')", "dev/b/f1"]


def test_primary_metric_comes_first() -> None:
    (classify,) = parse_objective("classify(multi_label=true)", labels=("a", "b")).objectives
    rows = LabeledRows(Path("x.csv"), {}, ["…"], labels=[("a",)])
    assert next(iter(score(classify, [{"labels": ["a"]}], rows))) == "micro_f1"


def test_f1_is_of_the_second_of_two_classes_and_undefined_for_more() -> None:
    two, three, tags = (
        parse_objective(kind, labels=labels).objectives[0]
        for kind, labels in (("classify", ("0", "1")), ("classify", ("a", "b", "c")), ("tag", ("O", "B-X")))
    )
    assert (positive_class(two), positive_class(three), positive_class(tags)) == ("1", None, None)
    rows = LabeledRows(Path("x.csv"), {}, ["…"] * 3, labels=["a", "b", "c"])
    assert "f1" not in score(three, [{"label": "a"}] * 3, rows)


def test_results_that_are_tables_are_shown_as_tables_in_notebooks(tmp_path: Path) -> None:
    rows = [{"model": "int8", "accuracy": 0.75}, {"model": "layers=3", "failed": "<why>"}]
    page = make_finished_run(tmp_path / "run", {"chosen": "int8", "candidates": rows})._repr_html_()
    assert "<td>chosen</td><td>int8</td>" in page and "<td>candidates</td>" not in page
    assert "<caption>candidates</caption>" in page
    assert "<tr><td>int8</td><td>0.75</td><td></td></tr>" in page and "&lt;why&gt;" in page
