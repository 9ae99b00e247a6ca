"""Tests of the closing lines of a fine-tuning: score, interval, baselines, and warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.evaluation.baseline_comparison import BaselineComparison, log_closing_lines
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Classify
from pretune.text.examples.labeled import LabeledRows
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import TaskData
from tests.support.objective_data import few_words
from tests.support.task_rows import classify_rows
from tests.support.tiny_models import tiny

TASK = Classify(labels=("no", "yes"))


def rows(count: int, informative: bool = True) -> LabeledRows:
    """Return rows of which two thirds have the label no; their words tell the label if `informative`."""
    labels = ["no" if i % 3 else "yes" for i in range(count)]
    texts = [f"{['bad', 'good'][label == 'yes'] if informative else 'some'} thing" for label in labels]
    return LabeledRows(Path("dev.csv"), {}, texts, labels=labels, lines=list(range(count)))


def compare(
    right: float, count: int = 600, informative: bool = False, learned: int = 2000, **more: Any
) -> BaselineComparison:
    """Return the comparison of a model that is right about a share of the dev examples."""
    dev = rows(count, informative)
    wrong = {"no": "yes", "yes": "no"}
    # 37 is coprime to the counts, so that errors are spread over the labels
    given = [label if (i * 37 % count) < right * count else wrong[label] for i, label in enumerate(dev.labels or [])]
    material = TaskData(parse_objective("classify"), TASK, TASK, rows(learned, informative), dev, [])
    return BaselineComparison(material, [{"label": label} for label in given], **more)


def test_a_model_that_beats_the_baselines_ends_without_a_warning() -> None:
    found = compare(0.9)
    assert found.warning() == "" and "warning" not in found.results()
    score, baselines = found.lines()
    assert score.startswith("accuracy 0.9, 95 % interval [0.8") and score.endswith("on 600 dev examples")
    assert baselines == "trivial baselines: a bag of words 0.6667, always 'no' 0.6667"
    assert found.results()["baseline/accuracy"] == pytest.approx(2 / 3)
    assert found.results()["interval/accuracy"][0] < 0.9 < found.results()["interval/accuracy"][1]


def test_a_model_that_is_no_better_is_warned_about() -> None:
    worse, hardly = compare(0.6), compare(0.68)
    assert "the model is no better than always answering 'no' (accuracy 0.6 [0.5" in worse.lines()[-1]
    assert "the model is not clearly better than always answering 'no' (accuracy 0.68" in hardly.lines()[-1]
    assert worse.lines()[-1] == f"warning: {worse.results()['warning']}"
    assert compare(0.95, informative=True).warning().startswith("the model is no better than a bag of words")
    assert compare(1.0, informative=True).warning() == ""


def test_always_the_same_answer_is_named() -> None:
    dev = rows(300, informative=False)
    material = TaskData(parse_objective("classify"), TASK, TASK, rows(60, informative=False), dev, [])
    found = BaselineComparison(material, [{"label": "no"}] * 300)
    assert "no better than always answering 'no' (accuracy 0.667 [0.6" in found.warning()
    assert found.warning().endswith(
        "try more epochs, because the model gives every example the same answer, or more labels, because 60 examples are few"
    )


@pytest.mark.parametrize(
    ("losses", "learned", "advice"),
    [
        ((0.7, 0.9, 1.4), 2000, "a lower learning rate, because the training loss rose"),
        ((0.7, float("nan"), float("nan")), 2000, "a lower learning rate, because the training loss rose"),
        ((0.7, 0.7, 0.69), 2000, "more epochs or a higher learning rate, because the training loss has hardly fallen"),
        ((0.7, 0.3, 0.1), 90, "more labels, because 90 examples are few"),
        ((0.7, 0.3, 0.1), 2000, "a larger or better suited pretrained model, because this one has enough labels"),
    ],
)
def test_advice_depends_on_the_situation(losses: tuple[float, ...], learned: int, advice: str) -> None:
    assert compare(0.6, learned=learned, losses=losses).advice() == advice


def test_a_wide_interval_asks_for_more_dev_examples() -> None:
    assert "more dev examples, because 60 leave the interval wide (--dev)" in compare(0.7, count=60).warning()


def test_seeds_and_task_names_are_shown() -> None:
    seeds = {"count": 5, "failed": 0, "dev/first/accuracy": {"mean": 0.88, "sd": 0.01}}
    found = compare(0.9, name="first", seeds=seeds)
    assert found.lines()[0].startswith("first: accuracy 0.9, ")
    assert found.lines()[0].endswith("; mean of 5 seeds 0.88 ± 0.01")
    assert {"interval/first/accuracy", "baseline/first/accuracy", "baselines/first"} == found.results().keys()


def test_a_run_without_dev_examples_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr("pretune.evaluation.baseline_comparison.log_info", logged.append)
    log_closing_lines([])
    assert "the model was not evaluated" in logged[0]


@pytest.mark.parametrize("several", [False, True])
def test_every_finetuning_ends_with_the_comparison(
    several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    files = {}
    for name in ("first", "second"):
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in classify_rows(40)))
    given: Any = {name: str(file) for name, file in files.items()} if several else files["first"]
    model = tiny("bert-tiny", Tokenizer.load(few_words()), tmp_path / "model")
    run = pt.finetune(
        model, given, dev=given, out=tmp_path / "run", budget=pt.Budget(steps=1), num_seeds=2, report=False
    )
    ending = capsys.readouterr().err.strip().splitlines()[-6 if several else -3 :]
    names = ["first/accuracy", "second/accuracy"] if several else ["accuracy"]
    assert all(f"interval/{name}" in run.results and f"baseline/{name}" in run.results for name in names)
    assert sum("trivial baselines: a bag of words 1, always " in line for line in ending) == len(names)
    assert not (tmp_path / "run" / "report.html").exists()
