"""Tests of short options for keys of recipe sections: --lr, --batch-size, --max-length, and --log-to."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.cli import VERBS
from pretune.runtime.recipe import read_recipe
from pretune.verbs.command_builder import list_options
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained

SHORT = {"lr": "optimizer.lr", "batch_size": "batch.size", "max_length": "batch.max_length", "log_to": "monitor.log_to"}


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        *((verb, set[str]()) for verb in ("finetune", "tune", "prune", "distill")),
        *((verb, {"batch_size"}) for verb in ("pretrain", "adapt")),  # steps are counted in tokens
    ],
)
def test_keys_of_sections_have_short_options_where_they_apply(verb: str, missing: set[str]) -> None:
    options = {option.name: f"{option.section}.{option.key}" for option in list_options(VERBS[verb])}
    assert {name: options[name] for name in SHORT if name in options} == {
        name: key for name, key in SHORT.items() if name not in missing
    }


def test_option_of_a_verb_goes_before_the_short_option_of_a_section() -> None:
    (lr,) = [option for option in list_options(VERBS["ulmfit"]) if option.name == "lr"]
    assert not lr.section


def test_short_options_set_the_keys_of_the_recipe(tmp_path: Path) -> None:
    files = start()
    command = ("finetune", files / "start", files / "train.csv", "--out", tmp_path / "run", "--steps", 1)
    run_command(*command, "--num-seeds", 1, "--no-report", "--lr", "3e-4", "--batch-size", 8, "--max-length", 16)
    recipe = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe["optimizer"]["lr"] == 3e-4 and recipe["batch"] == {"size": 8, "max_length": 16}
    assert not {"lr", "batch_size", "max_length"} & recipe.keys()
    assert not (tmp_path / "run" / "report.html").exists()  # and --report writes it: tests of the report


def test_recipe_value_is_overridden_and_two_spellings_are_refused(tmp_path: Path) -> None:
    files = start()
    (tmp_path / "recipe.yaml").write_text("optimizer: {lr: 0.1}\n")
    command = (
        "finetune",
        files / "start",
        files / "train.csv",
        "--out",
        tmp_path / "run",
        "--steps",
        1,
        "--num-seeds",
        1,
    )
    twice = run_command(*command, "--lr", "0.1", "--set", "optimizer.lr=0.2", check=False)
    assert (
        twice.returncode and "--lr and --set optimizer.lr set the same key of the recipe; give only one" in twice.stderr
    )
    bad = run_command(*command, "--lr", "0", check=False)
    assert bad.returncode and "optimizer.lr=0.0: expected a number that is above 0" in bad.stderr
    words = run_command(*command, "--lr", "fast", check=False)
    assert words.returncode and "fast" in words.stderr and not (tmp_path / "run").exists()
    run_command(*command, "--no-report", "--lr", "0.001", "--recipe", tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "run" / "recipe.yaml")["optimizer"]["lr"] == 0.001


def test_task_options_become_part_of_the_objective(tmp_path: Path) -> None:
    files = start()
    command = (
        "finetune",
        files / "start",
        files / "train.csv",
        "--out",
        tmp_path / "run",
        "--steps",
        1,
        "--num-seeds",
        1,
    )
    options = ("--no-report", "--threshold", "0.3", "--class-weight", "yes=5", "no=2")
    run_command(*command, *options, "--metric", "macro_f1")
    recipe = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe["objective"] == 'classify(threshold=0.3,class_weight={"yes": 5.0, "no": 2.0})'
    assert recipe["metric"] == "macro_f1" and not {"threshold", "class_weight"} & recipe.keys()
    command = tuple(tmp_path / "twice" if word == tmp_path / "run" else word for word in command)
    twice = run_command(*command, "--objective", "classify(threshold=0.2)", "--threshold", "0.3", check=False)
    assert twice.returncode and "both set threshold" in twice.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--class-weight", "even"], "give balanced, none, or LABEL=WEIGHT"),
        (["--class-weight", "maybe=2"], "a label 'maybe' that is not in the file"),
        (["--class-weight", "yes=0"], "class_weight of 'yes'=0.0: expected a number that is above 0"),
        (["--threshold", "1.5"], "threshold=1.5: expected a number that is at least 0 and at most 1"),
        (["--objective", "regress", "--threshold", "0.5"], "has no option threshold; remove this option"),
        (["--callbacks", "nothing"], "There is no callback 'nothing'"),
        (["--metrics", "nothing"], "There is no registered metric 'nothing'"),
        (["--log-to", "nothing"], "input should be 'tensorboard' or 'wandb'"),
    ],
)
def test_wrong_values_are_errors_that_say_what_to_do(given: list[str], message: str, tmp_path: Path) -> None:
    files = start()
    command = ("finetune", files / "start", files / "train.csv", "--out", tmp_path / "run", "--steps", 1, *given)
    refused = run_command(*command, check=False)
    assert refused.returncode and message in refused.stderr, refused.stderr
    assert not (tmp_path / "run").exists()


def test_predict_applies_another_threshold(tmp_path: Path) -> None:
    rows = [run_command("predict", trained(), "bad stone", "good tree", "--json", *more).json()["predictions"]
            for more in ((), ("--threshold", "0"), ("--threshold", "1"))]  # fmt: skip
    assert [[row["label"] for row in part] for part in rows] == [["no", "yes"], ["yes", "yes"], ["no", "no"]]
    assert all(row["probability"] == row["probabilities"][row["label"]] for part in rows for row in part)
    refused = run_command("predict", trained(), "bad stone", "--threshold", "2", check=False)
    assert refused.returncode and "threshold=2.0: expected a number" in refused.stderr
