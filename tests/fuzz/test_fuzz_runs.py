"""Damaged run folders, read by `pretune show`, `Run` and the model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.models.model_card import write_card
from pretune.runtime.console import format_result
from pretune.training.jobs.labeling import read_progress
from pretune.training.metrics_log import METRICS
from pretune.training.run_folder import ENVIRONMENT, RECIPE, RESULTS, Run, finish_run, start_run
from tests.support.fuzz_harness import FEW, MANY, Kind, attack
from tests.support.fuzz_models import tiny_model

RECIPE_OF_RUN: dict[str, Any] = {
    "model": "bert-tiny",
    "train": "train.csv",
    "dev": ["dev.csv"],
    "objective": "classify",
    "budget": {"steps": 20},
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.98]},
}
RESULTS_OF_RUN: dict[str, Any] = {
    "model": "bert-tiny",
    "objective": "classify",
    "step": 20,
    "flops": 1e9,
    "classify": 0.7,
    "dev/accuracy": 0.9,
    "dev/f1": 0.8,
    "positive_class": "yes",
    "seeds": {"count": 2, "failed": 0, "best": 1, "scores": {"accuracy": [0.9, 0.8]}},
}


def make(folder: Path) -> None:
    """Write the folder of a finished fine-tuning."""
    start_run(folder, "finetune", RECIPE_OF_RUN, resume=False)
    tiny_model("bert", "classify", labels=("no", "yes")).save(folder)
    lines = [{"step": step, "flops": 1e8 * step, "classify": 1 / step, "gradient_norm": 1.5} for step in (10, 20)]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    finish_run(folder, RESULTS_OF_RUN)


def show(folder: Path) -> str:
    """Return what `pretune show` prints of a run, with the text for its model card."""
    run = Run(folder)
    shown = pt.show(folder)
    json.dumps(shown.describe(), default=str)
    return format_result(shown.table()) + format_result(run.table()) + str(run.history)


def card(folder: Path) -> Any:
    write_card(folder, Run(folder).history)
    return True


def make_labeling(folder: Path) -> None:
    """Write the progress of a labeling session."""
    point = {"labels": 8, "accuracy": 0.5, "standard_error": 0.1, "majority": 0.4, "tested": 5}
    content = {"model": "m", "labels": ["a", "b"], "skipped": ["a text"], "learning_curve": [point]}
    (folder / "labeled.json").write_text(json.dumps(content))


KINDS = [
    *(Kind(f"{name} of a run", make, [name], show) for name in (METRICS, RESULTS, RECIPE, ENVIRONMENT)),
    Kind("labeling session", make_labeling, ["labeled.json"], lambda folder: read_progress(folder / "labeled.json")),
    Kind("files that a model card is written from", make, [RESULTS, RECIPE, ENVIRONMENT, "config.json"], card),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_runs(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_runs_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)


def test_a_truncated_last_line_of_metrics_is_ignored(tmp_path: Path) -> None:
    make(tmp_path)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 30, "classi')
    assert [line["step"] for line in Run(tmp_path).metrics()] == [10, 20]


def test_metrics_that_are_not_text_are_refused_with_their_line(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(pt.PretuneError, match=r"metrics\.jsonl, line 3: not valid UTF-8"):
        Run(tmp_path).metrics()
