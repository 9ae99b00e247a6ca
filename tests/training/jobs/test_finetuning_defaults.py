"""Tests of the default settings of fine-tuning, and of the recipes that models carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.models.create_model import make_model, random_copy
from pretune.models.loading import load
from pretune.models.presets import find_preset
from pretune.objectives.tasks.answer import AnswerTask
from pretune.objectives.tasks.classify import Classify
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.jobs.finetuning import resolve_finetuning
from pretune.training.jobs.finetuning_defaults import (
    SETTINGS,
    check_model_recipe,
    default_pooling,
    epochs_of_rows,
    finetuning_defaults,
    lr_of_width,
    model_width,
    read_model_recipe,
)
from tests.support.objective_data import few_words
from tests.support.task_rows import classify_rows
from tests.support.tiny_models import tiny

RECIPE = {"optimizer": {"lr": 2e-3, "betas": [0.9, 0.99]}, "batch": {"size": 8}, "epochs": 5, "pooling": "mean"}
BUNDLED = "pretune-small-en"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model folder without a recipe."""
    return tiny("bert-tiny", Tokenizer.load(few_words()), tmp_path / "model")


def add_recipe(folder: Path, content: Any) -> Path:
    """Write a fine-tuning recipe into the config.json of a model folder."""
    config = json.loads((folder / "config.json").read_text())
    config["pretune"]["finetuning"] = content
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def job(model: str | Path, **options: Any) -> Any:
    """Return the resolved job of fine-tuning a model."""
    return resolve_finetuning(str(model), {"train": "x.csv", "out": Path("run"), "objective": "classify", **options})


def test_learning_rates_fall_with_the_width() -> None:
    rates = [lr_of_width(width) for width in (64, 128, 256, 384, 768, 1024, 4096)]
    assert rates == sorted(rates, reverse=True) and rates[0] == rates[1] == 1e-3 and rates[-1] == 1e-5
    assert 2e-5 <= lr_of_width(768) <= 5e-5 and 1e-5 <= lr_of_width(1024) <= 3e-5
    assert model_width("bert-base") == 768 and model_width("t5-tiny") == find_preset("t5-tiny")["config"]["d_model"]


@pytest.mark.parametrize("rows", [5, 25, 100, 200, 600, 1999, 2000, 100_000])
def test_few_examples_get_enough_steps(rows: int) -> None:
    found = finetuning_defaults("bert-tiny", rows=rows)
    size, epochs = found.sections["batch"]["size"], found.epochs
    assert epochs is not None and 3 <= epochs <= 40
    assert epochs * rows / size >= 200 or epochs == 40
    assert epochs == 3 or (epochs - 1) * rows / size < 200


def test_settings_of_the_task_and_the_model_are_merged_key_by_key(model: Path) -> None:
    plain = finetuning_defaults(str(model), [AnswerTask()])
    assert plain.sections["batch"] == {"max_length": 384} and plain.sections["schedule"] == SETTINGS["schedule"]
    add_recipe(model, RECIPE)
    found = finetuning_defaults(str(model), [AnswerTask()], rows=100)
    assert found.sections["optimizer"] == {"weight_decay": 0.01, "max_grad_norm": 1.0, "lr": 2e-3, "betas": (0.9, 0.99)}
    assert found.sections["batch"] == {"max_length": 384, "size": 8}
    assert found.epochs == 5 and found.pooling == "mean"


def test_settings_of_the_user_replace_those_of_the_model(model: Path) -> None:
    add_recipe(model, RECIPE)
    plan = job(model, optimizer=pt.Optimizer(lr=1e-5), epochs=2)
    assert plan.optimizer.lr == 1e-5 and plan.optimizer.betas == (0.9, 0.99)
    assert plan.epochs == 2 and plan.batch.size == 8 and job(model).epochs == 5
    assert job(BUNDLED).for_rows(100).epochs == epochs_of_rows(100, 16) and job(BUNDLED).for_rows(100).batch.size == 16


def test_strategies_that_train_few_parameters_have_larger_rates(model: Path) -> None:
    rates = {strategy: job(BUNDLED, strategy=strategy).optimizer.lr for strategy in ("full", "lora(8)", "frozen")}
    assert rates["full"] < rates["lora(8)"] == rates["frozen"] <= 2e-3
    assert job(add_recipe(model, {"optimizer": {"lr": 5e-3}}), strategy="lora").optimizer.lr == 5e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"optimiser": {}}, "unknown key 'optimiser'; did you mean 'optimizer'?"),
        ({"optimizer": {"rate": 1}}, "the recipe section optimizer has no key 'rate'"),
        ({"optimizer": {"lr": -1.0}}, "optimizer.lr"),
        ({"optimizer": "fast"}, "optimizer: "),
        ({"batch": {"tokens": 8}}, "batch.tokens applies only to training on running text; remove it"),
        ({"schedule": {"kind": "lineer"}}, "did you mean 'linear'?"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": "many"}, "epochs"),
        ({"pooling": "meen"}, "unknown pooling 'meen'; did you mean 'mean'?"),
        ({"dropout": {"hidden_dropout_prob": 1.5}}, "dropout.hidden_dropout_prob"),
        ({"dropout": 0.1}, "dropout"),
    ],
)
def test_invalid_recipes_are_explained(content: dict[str, Any], message: str, model: Path) -> None:
    with pytest.raises(PretuneError) as error:
        read_model_recipe(str(add_recipe(model, content)))
    assert str(error.value).startswith(f"{model / 'config.json'}: pretune.finetuning: ") and message in str(error.value)


def test_a_recipe_that_is_not_a_mapping_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=r"config.json: pretune: finetuning"):
        read_model_recipe(str(add_recipe(model, [1])))
    preset = tmp_path / "mine.yaml"
    preset.write_text("like: bert-tiny\nfinetuning: 3\n")
    with pytest.raises(PretuneError, match="`finetuning` must be a mapping"):
        read_model_recipe(str(preset))
    preset.write_text("like: bert-tiny\nfinetuning: {pooling: 3}\n")
    with pytest.raises(PretuneError, match=r"mine.yaml: finetuning: unknown pooling 3"):
        read_model_recipe(str(preset))


def test_recipes_of_presets_and_models_are_carried_on(tmp_path: Path, model: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("like: bert-tiny\nfinetuning: {epochs: 7, optimizer: {lr: 2.0e-4}}\n")
    made = make_model(str(preset), 256)
    assert made.finetuning == {"epochs": 7, "optimizer": {"lr": 2e-4}} == random_copy(made).finetuning
    assert read_model_recipe(str(preset)).epochs == 7
    made.save(tmp_path / "saved")
    assert read_model_recipe(str(tmp_path / "saved")).sections == {"optimizer": {"lr": 2e-4}}
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in classify_rows(8)))
    run = pt.finetune(add_recipe(model, RECIPE), rows, out=tmp_path / "run", budget=pt.Budget(steps=1))
    assert load(run.folder).finetuning == RECIPE and run.recipe["optimizer"]["lr"] == 2e-3
    assert load(run.folder).options["pooling"] == "mean"


@pytest.mark.parametrize(("chosen", "expected"), [(None, 0.3), ({"hidden_dropout_prob": 0.2}, 0.2)])
def test_dropout_of_the_recipe_applies_unless_the_user_sets_it(
    tmp_path: Path, model: Path, chosen: dict[str, float] | None, expected: float
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in classify_rows(8)))
    recipe = {**RECIPE, "dropout": {"hidden_dropout_prob": 0.3}}
    options: dict[str, Any] = {"budget": pt.Budget(steps=1), "dropout": chosen}
    run = pt.finetune(add_recipe(model, recipe), rows, out=tmp_path / "run", **options)
    assert json.loads((run.folder / "config.json").read_text())["hidden_dropout_prob"] == expected


def test_the_bundled_model_and_its_preset_carry_the_same_recipe() -> None:
    assert read_model_recipe(BUNDLED) == read_model_recipe("modern-small") != check_model_recipe({}, "none")
    assert finetuning_defaults(BUNDLED, [Classify()]).pooling == "mean"


def test_pooling_is_the_mean_where_a_published_layout_leaves_the_choice() -> None:
    assert default_pooling("modernbert-tiny", [Classify()]) == "mean"
    assert default_pooling("bert-tiny", [Classify()]) is None


def test_a_trained_head_keeps_its_pooling(tmp_path: Path, model: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in classify_rows(8)))
    options: Any = {"out": tmp_path / "run", "budget": pt.Budget(steps=1), "objective": "classify(pooling=max)"}
    run = pt.finetune(model, rows, **options)
    add_recipe(run.folder, {"pooling": "mean"})
    assert default_pooling(str(run.folder), [Classify()]) == "max"
