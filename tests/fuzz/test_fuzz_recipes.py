"""Damaged recipes, presets and suites, and odd values of options and expressions."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretune import PretuneError
from pretune.evaluation import paired_bootstrap
from pretune.evaluation.comparison import compare_evaluations
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.suite_runner import rows_path, write_lines
from pretune.objectives import OBJECTIVES, parse_objective
from pretune.runtime.parsing import write_checksummed_json
from pretune.runtime.recipe import merge_recipes, parse_settings, read_recipe, validate_arguments, write_recipe
from pretune.training.jobs import finetuning, pretraining
from pretune.training.jobs.finetuning_strategies import parse_strategy
from pretune.training.jobs.hyperparameter_search import read_trials
from pretune.training.jobs.recipe_scaling import parse_budget
from pretune.verbs.training.finetune import finetune
from pretune.verbs.training.pretrain import pretrain
from tests.support.fuzz_harness import FEW, MANY, ODD_SCALARS, Kind, attack

ROWS = "text,label\n" + "".join(f"text {i},{'yes' if i % 2 else 'no'}\n" for i in range(8))
PRETRAIN = """
model: bert-tiny
data: [corpus.txt]
objective: mlm(mask_rate=0.3)+nsp
language: en
budget: {steps: 10}
optimizer: {name: adamw, lr: 1e-4, betas: [0.9, 0.99], eps: 1e-6, weight_decay: 0.01, max_grad_norm: 1.0}
schedule:
  kind: linear
  warmup_ratio: 0.1
batch:
  tokens: 512
  max_length: 64
  size_warmup: [0.5, 0.1]
monitor: {log_every: 1, eval_every: 0, held_out_fraction: 0.1, save_every: 10, save_total_limit: 2}
tokenizer:
  kind: wordpiece
  vocab_size: 100
seed: 3
"""
FINETUNE = """
model: bert-tiny
train: train.csv
text: text
label: label
objective: classify
strategy: top(1)
epochs: 2.0
num_seeds: 2
shots: 2
optimizer:
  lr: 3e-5
  layer_decay: 0.9
schedule: {kind: cosine, warmup_ratio: 0.1, min_lr_ratio: 0.1}
batch: {size: 8, max_length: 64}
monitor: {eval_every: 2, patience: 1}
"""
PRESET = """
like: bert-tiny
source: none
departures: none
family: bert
objective: mlm
tokenizer: {kind: wordpiece, vocab_size: 100, lowercase: true}
config: {hidden_size: 16}
budget: {steps: 10}
optimizer: {name: lamb, lr: 1e-3, betas: [0.9, 0.99]}
schedule: {kind: linear, warmup_ratio: 0.01}
batch: {tokens: 256, length_schedule: [[0.9, 32], [1.0, 64]]}
monitor: {log_every: 1}
"""
SUITE = """
title: Mine
source: me
scale: 100
averages: {all: [one, two]}
tasks:
  one:
    title: One
    kind: classify
    metrics: [accuracy]
    files: {train: train.csv | other.csv, dev: [dev.csv, more.csv]}
    roles: {text: text, label: label}
    counts: {train: 8, dev: [8, 9]}
    values: {label: {"yes": "1"}}
    splits: {dev: {roles: {text: text, label: label}}}
    submission: {file: one.tsv}
    prompt: {template: "{text} [MASK]", verbalizer: {"1": good}}
    version: 1
  two:
    like: one
    title: Two
    files: {train: train.csv, dev: train.csv}
    length: 64
    leave_out: {label: "-"}
"""


class ArrivedError(Exception):
    """Raised where training would begin."""


def run(verb: Any, folder: Path, name: str, settled: dict[str, Any]) -> dict[str, Any]:
    """Do what the command line does with a recipe, up to the start of training."""

    def begin(plan: Any, *args: Any, **kwargs: Any) -> Any:
        parse_objective(plan.objective)
        plan.budget and plan.budget.check()
        getattr(plan, "strategy", None) and parse_strategy(plan.strategy)
        write_recipe(plan.recipe())
        raise ArrivedError

    with (
        patch.object(pretraining, "pretrain", begin),
        patch("pretune.training.jobs.several_seeds.finetune_seeds", begin),
        patch.object(finetuning, "read_task_data", lambda plan: begin(plan)),
        patch("pretune.training.jobs.multitask.read_tasks", lambda plan: begin(plan)),
        patch("pretune.training.jobs.self_training.self_train", begin),
        contextlib.chdir(folder),
        contextlib.suppress(ArrivedError),
    ):
        verb(**validate_arguments(verb, {**settled, "out": str(folder / "run")}, name))
    assert not (folder / "run").exists()
    return {"read": True}


def read_suite(folder: Path) -> Any:
    suite = find_suite(folder / "suite.yaml")
    here, _ = suite.available_tasks(folder)
    for task in here.values():
        task.read("dev", folder, allow_incomplete=True)
    return suite.select_tasks([])


def read_preset(folder: Path) -> Any:
    return run(pretrain, folder, "pretrain", {"model": str(folder / "mine.yaml"), "data": ["corpus.txt"]})


def writer(**files: str) -> Any:
    def make(folder: Path) -> None:
        for name, content in {"corpus.txt": "a text\n", "train.csv": ROWS, "dev.csv": ROWS, "more.csv": ROWS}.items():
            (folder / name).write_text(content)
        for name, content in files.items():
            (folder / f"{name}.yaml").write_text(content)

    return make


def evaluations(folder: Path) -> None:
    """Write two small evaluations of one suite, as `pretune evaluate` leaves them, and a search."""
    writer(suite=SUITE)(folder)
    for name in ("first", "second"):
        out = folder / name
        write_checksummed_json(out / "suite.json", {"suite": str(folder / "suite.yaml"), "model": name})
        write_checksummed_json(out / "one" / "result.json", {"seeds": 1, "best": 0, "scores": {"accuracy": [0.5]}})
        rows = [{"text": f"text {i}", "label": str(i % 2)} for i in range(6)]
        write_lines(rows_path(out, "one", "dev"), rows)
        write_lines(out / "one/seeds/0/answers/one.dev.jsonl", [{"label": "1"} for _ in rows])
    trials = [{"number": 0, "settings": {"lr": 1e-3}, "value": 0.5, "seconds": 2.0, "error": None}]
    (folder / "trials.json").write_text(json.dumps(trials))


small_suite = cache(find_suite)


def compare(folder: Path) -> Any:
    suite = small_suite(str(folder.parent / "good" / "suite.yaml"))
    with (
        patch("pretune.evaluation.comparison.find_suite", lambda name: suite),
        patch.object(paired_bootstrap, "ROUNDS", 50),
    ):
        return compare_evaluations(folder / "first", folder / "second")


KINDS = [
    Kind("evaluation folder", evaluations, ["first/suite.json", "second/suite.json", "first/one/seeds/0/answers/one.dev.jsonl"], compare),
    Kind("trials of a search", evaluations, ["trials.json"], lambda f: read_trials(f / "trials.json")),
    Kind("recipe of pretrain", writer(recipe=PRETRAIN), ["recipe.yaml"], lambda f: run(pretrain, f, "pretrain", read_recipe(f / "recipe.yaml"))),
    Kind("recipe of finetune", writer(recipe=FINETUNE), ["recipe.yaml"], lambda f: run(finetune, f, "finetune", read_recipe(f / "recipe.yaml"))),
    Kind("preset", writer(mine=PRESET), ["mine.yaml"], read_preset),
    Kind("suite", writer(suite=SUITE), ["suite.yaml"], read_suite),
]  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_recipes(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)
    assert report.counts["refused"] > FEW // 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_recipes_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)


# -- options and expressions ------------------------------------------------------------------------------------------

NAMES = [
    "mlm",
    "nsp",
    "sop",
    "sso",
    "rtd",
    "lm",
    "spans",
    "classify",
    "tag",
    "answer",
    "generate",
    "entity",
    "contrast",
    "x",
    "",
]
KEYS = ["rate", "unit", "labels", "pooling", "temperature", "length", "tokens", "mean", "prompt", "words", "x", ""]
NUMBERS = ["0", "1", "-1", "0.5", "1e308", "1e400", "nan", ".nan", "inf", "-.inf", "9" * 400, "1_0", "0b_", "1e-320"]
VALUES = [*NUMBERS, "null", "[", "]", "{", "[]", "{}", "[1, [2]]", '"', '"a"', "true", "~", "*a", "(", "2001-99-99", "\ud800", "é" * 300, "[" * 3000]  # fmt: skip
some = st.sampled_from
option = st.builds("{}={}".format, some(KEYS), some(VALUES) | st.text(max_size=8))
term = st.builds(
    lambda own, weight, name, options, layers: f"{own}{weight}{name}({','.join(options)}){layers}",
    some(["", "", "my:", "mlm:", ":"]),
    some(["", "", "0.5*", "nan*", "1e999*", "-1*", "*", "0*"]),
    some([*NAMES, *OBJECTIVES]),
    st.lists(option, max_size=3),
    some(["", "", " on all", " on last / x", " on 3", " on"]),
)
expression = st.builds(lambda terms, marks: "".join(a + b for a, b in zip(terms, marks, strict=False)),
    st.lists(term, min_size=1, max_size=3), st.lists(some(["+", "|", "", "+"]), min_size=3, max_size=3)) | st.text(max_size=30)  # fmt: skip
plenty = settings(max_examples=FEW, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def refused_in_one_line(read: Any, *given: Any) -> None:
    message = "."
    try:
        read(*given)
    except PretuneError as error:
        message = str(error)
    assert "\n" not in message and 0 < len(message) < 1300


@pytest.mark.not_fast
@plenty
@given(expression)
def test_objective_expressions(text: str) -> None:
    refused_in_one_line(lambda: str(parse_objective(text, labels=("a", "b"))))


@pytest.mark.not_fast
@plenty
@given(st.lists(st.builds(lambda name, value: f"{name}({value})", some(["top", "lora", "gradual", "sparse", "reset", "freelb", "full", "int8", "x"]), some(VALUES)) | st.text(max_size=10), min_size=1, max_size=3))  # fmt: skip
def test_strategies(parts: list[str]) -> None:
    refused_in_one_line(parse_strategy, "+".join(parts))


@pytest.mark.not_fast
@plenty
@given(some(NUMBERS) | st.text(max_size=5), some(["min", "h", "steps", "tokens", "flops", "s", "", "x" * 300]))
def test_budgets_in_words(number: str, unit: str) -> None:
    refused_in_one_line(parse_budget, f"{number}{unit}")


PATHS = ["optimizer.lr", "optimizer.betas", "optimizer", "schedule.warmup_ratio", "batch.tokens", "batch.length_schedule", "budget.steps", "seed", "model", "objective", "tokenizer", "tokenizer.vocab_size", "monitor.save_total_limit", "", ".", "a.b.c", "optimizer.lr.x", "data", "x" * 300]  # fmt: skip


@pytest.mark.not_fast
@plenty
@given(st.lists(st.builds("{}={}".format, some(PATHS) | st.text(max_size=6), some([*VALUES, *ODD_SCALARS]) | st.text(max_size=10)) | st.text(max_size=6), max_size=3))  # fmt: skip
def test_set_options(tmp_path_factory: pytest.TempPathFactory, given_: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    base = {"model": "bert-tiny", "data": ["corpus.txt"], "budget": {"steps": 10}}
    refused_in_one_line(lambda: run(pretrain, folder, "pretrain", merge_recipes(base, parse_settings(given_))))


def test_settings_out_of_range_are_refused_before_a_run_folder_is_made(tmp_path: Path) -> None:
    writer()(tmp_path)
    bad = {
        "optimizer.lr": [".nan", "-1", ".inf", "0"], "optimizer.betas": ["[0.9, 1.0]", "[-0.1, 0.9]", "[0.9]"],
        "optimizer.weight_decay": ["-0.1"], "optimizer.eps": ["-1e-8", ".nan"], "optimizer.max_grad_norm": ["-1"],
        "schedule.warmup_ratio": ["1.1", "-0.1", ".nan"], "batch.tokens": ["0", "-5"], "batch.max_length": ["0"],
        "budget.steps": ["0", "-1"], "budget.seconds": [".inf", ".nan"], "monitor.log_every": ["0"],
        "monitor.held_out_fraction": ["1.0", "-0.5"], "monitor.save_total_limit": ["0"], "seed": ["1" + "0" * 30],
    }  # fmt: skip
    base = {"model": "bert-tiny", "data": ["corpus.txt"], "budget": {"steps": 10}}
    for key, values in bad.items():
        for value in values:
            with pytest.raises(PretuneError, match=key.split(".")[-1]):
                run(pretrain, tmp_path, "pretrain", merge_recipes(base, parse_settings([f"{key}={value}"])))
    assert not (tmp_path / "run").exists()
