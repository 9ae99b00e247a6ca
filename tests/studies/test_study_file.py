"""Tests of study files: arms, grids, and messages about everything that is wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.studies.study_file import find_study, format_amount, parse_study, read_study
from tests.support.studies import study_content


def test_arms_are_merged_with_the_base_and_multiplied_by_the_grid() -> None:
    grid = {"pretrain.batch.tokens": [32, 64], "pretrain.optimizer.lr": [1e-3]}
    study = parse_study(study_content(grid=grid), "x")
    assert [arm.name for arm in study.arms] == [
        "mlm, tokens=32, lr=0.001", "mlm, tokens=64, lr=0.001", "lm, tokens=32, lr=0.001", "lm, tokens=64, lr=0.001"
    ]  # fmt: skip
    last = study.arms[-1].pretrain
    assert last is not None
    assert (last["objective"], last["batch"], last["optimizer"]) == (
        "lm",
        {"tokens": 64, "max_length": 16},
        {"lr": 1e-3},
    )
    assert len({arm.folder for arm in study.arms}) == 4 and all("/" not in arm.folder for arm in study.arms)


def test_a_grid_alone_makes_arms() -> None:
    study = parse_study(
        study_content(arms=None, grid={"pretrain.objective": ["mlm(mask_rate=0.15)", "mlm(mask_rate=0.4)"]}), "x"
    )
    assert [arm.name for arm in study.arms] == ["objective=mlm(mask_rate=0.15)", "objective=mlm(mask_rate=0.4)"]


def test_defaults_and_further_keys_are_read() -> None:
    study = parse_study(
        study_content(claim="mlm is better", source="a paper", published={"mlm": 1}, reference="lm"), "x"
    )
    assert (study.claim, study.source, study.published, study.reference) == (
        "mlm is better",
        "a paper",
        {"mlm": 1},
        "lm",
    )
    assert (study.unit, study.budgets, study.seeds, study.stage, study.metric) == (
        "tokens",
        (640.0,),
        2,
        "pretraining",
        "word",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questoin": "?"}, "x: unknown key 'questoin'; did you mean 'question'?"),
        ({"question": None}, "x: the key 'question' is missing"),
        ({"budget": {"steps": 10}}, "'budget' has 2 units"),
        ({"budget": "10 parsecs"}, "x: budget '10 parsecs' is not a budget"),
        ({"budget": "10steps"}, "x: budget: 'steps' is unknown"),
        ({"budget": {"tokens": [1e3, 1e3]}}, "a list of different amounts"),
        ({"budget": {"tokens": -1}}, "above 0"),
        ({"seeds": 0}, "x: seeds=0"),
        ({"base": {"pretrain": {"objectiv": "mlm"}}}, r"x: arms.mlm.pretrain: unknown key 'objectiv'; did you mean 'objective'\?"),
        ({"base": {"pretrain": {"batch": {"token": 1}}}}, "unknown key 'batch.token'; did you mean 'tokens'"),
        ({"base": {"pretrian": {}}}, "x: arms.mlm: unknown key 'pretrian'; did you mean 'pretrain'"),
        ({"base": {"finetune": {"epoch": 1}}}, "x: arms.mlm.finetune: unknown key 'epoch'; did you mean 'epochs'"),
        ({"evaluations": {"word": {"kind": "tsak"}}}, "x: evaluations.word: kind: 'tsak' is unknown; did you mean 'task'"),
        ({"evaluations": {"word": {"trian": "a"}}}, "x: evaluations.word: unknown key 'trian'; did you mean 'train'"),
        ({"evaluations": {"a b": {"kind": "latency"}}}, "letters, digits"),
        ({"search": {"lr": [1e-3, 1e-4], "share": 2.0}}, "above 0 and at most 1"),
        ({"search": {"lr": [1e-3]}}, "at least two different learning rates"),
        ({"search": {"lr": [1e-3, 1e-4], "by": "words"}}, "'words' is unknown; did you mean 'word'"),
        ({"expect": [{"better": "mlm", "then": "lm"}]}, "x: expect 1: unknown key 'then'; did you mean 'than'"),
        ({"expect": [{"better": "mlm", "than": "ml"}]}, "x: expect 1: 'ml' is unknown; did you mean"),
        ({"expect": [{"better": "mlm", "than": "mlm"}]}, "two different arms"),
        ({"reference": "mmm"}, "x: reference: 'mmm' is unknown"),
        ({"arms": {"mlm": {}}}, "at least two arms"),
        ({"arms": None}, "nothing to compare"),
        ({"arms": {"a": {"control": True}, "b": {"control": True}}}, "all arms are controls"),
        ({"arms": {"a b": {}, "a-b": {}}}, "lead to the same folder"),
        ({"arms": {"a": {"pretrain": {"objective": "mml"}}, "b": {}}}, "mml"),
        ({"arms": {"a": {}, "b": 3}}, "x: 'arms'"),
        ({"evaluations": {"word": None}}, "evaluations"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        parse_study(study_content(**changes), "x")


def test_an_arm_without_pretraining_needs_control() -> None:
    content = study_content()
    content["base"] = {"model": "bert-tiny"}
    content["arms"] = {"a": {"pretrain": {"data": "x.txt"}}, "b": None}
    with pytest.raises(PretuneError, match="the arm 'b' has no pretraining, so it does not use the budget"):
        parse_study(content, "x")


def test_epochs_contradict_the_budget_of_a_study_of_fine_tuning() -> None:
    content = study_content(arms={"a": {}, "b": {"finetune": {"epochs": 2}}})
    content["base"] = {"model": "pretune-small-en"}
    del content["evaluations"]["word"]["budget"]
    with pytest.raises(
        PretuneError, match=r"arms.b: the budget of the study applies to fine-tuning and replaces 'epochs'"
    ):
        parse_study(content, "x")


def test_an_arm_with_a_search_has_no_budget_of_its_own() -> None:
    arms = {"a": {}, "b": {"pretrain": {"budget": {"tokens": 640}}}}
    with pytest.raises(PretuneError, match=r"arms.b: the trials of a search get a share .* remove 'pretrain.budget'"):
        parse_study(study_content(arms=arms, search={"lr": [1e-3, 1e-4]}), "x")


def test_a_study_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert len(read_study("quick").arms) == 4
    with pytest.raises(PretuneError, match="there is no such study file"):
        find_study(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- a", encoding="utf-8")
    with pytest.raises(PretuneError, match="must be a mapping"):
        read_study(tmp_path / "list.yaml")


def test_amounts_are_readable() -> None:
    assert [format_amount("flops", x) for x in (1e16, 2.5e11, 9e4)] == ["1e16 FLOPs", "2.5e11 FLOPs", "90,000 FLOPs"]
    assert format_amount("seconds", 1.5) == "1.5 s"
