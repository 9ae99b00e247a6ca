"""Tests that every place that refuses a name suggests the most similar known one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.compression.targets import parse_target
from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.official_metrics import suite_metrics
from pretune.families import find_family
from pretune.models.hf_config import problem_objective
from pretune.nn.quantized.int8 import check_kind
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import parse_objective
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import suggest
from pretune.runtime.recipe import validate_arguments
from pretune.training.recipe_sections import Schedule, resolve_section
from tests.support.one_word_task import start


def finetune(**options: Any) -> Any:
    """Fine-tune the tiny model on its task with options that are refused."""
    return pt.finetune(start() / "start", start() / "train.csv", **{"out": start() / "never", **options})


def several_tasks(**options: Any) -> Any:
    """Fine-tune the tiny model on two tasks with options that are refused."""
    train = [f"{name}={start() / 'train.csv'}" for name in ("first", "second")]
    return pt.finetune(start() / "start", train, out=start() / "never", **options)


def embedding(**content: Any) -> Any:
    """Read the description of a text embedding in config.json."""
    return TextEmbedding.read({"pooling": ["mean"], **content}, "config.json")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "model": (lambda: pt.load("pretune-smal-en"), "pretune-small-en"),
    "tokenizer": (lambda: pt.inspect_tokenizer("pretune-small-em", ["a"]), "pretune-small-en"),
    "preset": (
        lambda: pt.pretrain("bert-tyni", start() / "text.txt", out="never", budget=pt.Budget(steps=1)),
        "bert-tiny",
    ),
    "thing to show": (lambda: pt.show("objectivs"), "objectives"),
    "suite to show": (lambda: pt.show("gleu"), "glue"),
    "objective": (lambda: parse_objective("clasify"), "classify"),
    "option of an objective": (lambda: parse_objective("mlm(mask_rat=0.3)"), "mask_rate"),
    "loss of an objective": (lambda: parse_objective("rank(ranking_loss=listwize)"), "listwise"),
    "unit of an objective": (lambda: parse_objective("shuffle(unit=sentence)"), "sentences"),
    "class weight": (lambda: parse_objective("classify(class_weight=balance)"), "balanced"),
    "strategy": (lambda: finetune(strategy="ful"), "full"),
    "column": (lambda: finetune(text="txt"), "text"),
    "device": (lambda: finetune(device="cdua"), "cuda"),
    "task sampling": (lambda: several_tasks(task_sampling="uniforn"), "uniform"),
    "task of several": (lambda: several_tasks(dev=["first=a.csv", "secnd=b.csv"]), "second"),
    "pooling": (lambda: embedding(pooling=["men"]), "mean"),
    "key of a text embedding": (lambda: embedding(similarty="cosine"), "similarity"),
    "suite": (lambda: find_suite("gleu"), "glue"),
    "task of a suite": (lambda: find_suite("glue").select_tasks(["sst2"]), "sst-2"),
    "metric": (lambda: suite_metrics(["acuracy"], [], []), "accuracy"),
    "family": (lambda: find_family("rberta", "config.json"), "roberta"),
    "problem type": (lambda: problem_objective({"problem_type": "regresion"}, ["a"], Path("c")), "regression"),
    "quantization": (lambda: check_kind("dinamic"), "dynamic"),
    "quantization method": (lambda: pt.quantize(start() / "start", out="never", method="dinamic"), "dynamic"),  # type: ignore[arg-type]
    "target": (lambda: parse_target("latensy=5ms"), "latency"),
    "recipe key": (lambda: validate_arguments(pt.finetune, {"epohcs": 3}, "finetune"), "epochs"),
    "key of a section": (lambda: validate_arguments(pt.finetune, {"schedule": {"knd": "linear"}}, "finetune"), "kind"),
    "value of a key": (lambda: validate_arguments(pt.finetune, {"schedule": {"kind": "lineer"}}, "finetune"), "linear"),
    "key of a preset": (lambda: resolve_section(Schedule, None, {"knd": "linear"}), "kind"),
    "value in a preset": (lambda: resolve_section(Schedule, None, {"kind": "lineer"}), "linear"),
    "kind of tokenizer": (lambda: pt.train_tokenizer(start() / "text.txt", kind="wordpeice"), "wordpiece"),  # type: ignore[arg-type]
    "head": (lambda: pt.export("pretune-small-en", out="never", head="mln"), "mlm"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_misspelled_name_is_refused_with_a_suggestion(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    call, meant = REFUSED[what]
    with pytest.raises(PretuneError, match=f"did you mean '{meant}'"):
        call()


def test_language_without_a_token_is_refused_with_a_suggestion() -> None:
    tokenizer = pt.train_tokenizer(
        start() / "text.txt", kind="wordpiece", vocab_size=100, languages=["english", "german"]
    )
    with pytest.raises(PretuneError, match=r"did you mean 'language english'\?"):
        tokenizer.role("language englisch")


def test_word_that_is_not_in_the_text_is_refused_with_a_suggestion() -> None:
    with pytest.raises(PretuneError, match=r"did you mean 'bird'\?"):
        pt.neighbors(start() / "start", "brid", context="a red bird", corpus=start() / "text.txt")


def test_all_known_names_are_listed_if_none_is_similar() -> None:
    assert suggest("xyzzy", ["b", "a"]) == "known: a, b"
    assert suggest("xyzzy", ["b", "a"], "look it up") == "look it up"
    with pytest.raises(PretuneError, match="known: cpu, cuda"):
        choose_device("xyzzy")


def test_values_of_another_type_get_no_suggestion() -> None:
    for value in (3, "xyzzy"):
        with pytest.raises(PretuneError, match="kind") as refused:
            resolve_section(Schedule, None, {"kind": value})
        assert "did you mean" not in str(refused.value)
