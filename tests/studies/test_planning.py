"""Tests of plans: equal budgets, estimated costs against counted ones, and refusals with the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.studies.planning import StudyPlan, plan_study
from pretune.studies.study_file import parse_study, read_study
from pretune.text.tokenizers.tokenizer import Tokenizer
from tests.support.studies import ARMS, study_content


def plan(**changes: Any) -> StudyPlan:
    return plan_study(parse_study(study_content(**changes), "x"), "cpu")


def test_equal_budgets_pass_and_are_met() -> None:
    for budget in ({"tokens": 6400}, {"seconds": 60}, {"flops": 1e12}):
        content = study_content()
        content["budget"] = budget
        found = plan_study(parse_study(content, "x"), "cpu")
        found.check()
        ((unit, amount),) = budget.items()
        for one in found.arms:
            assert amount <= one.spent <= amount * 1.02 and one.unit == unit


def test_a_large_last_step_is_refused_with_the_figures() -> None:
    arms = {"small": {"pretrain": {"batch": {"tokens": 64}}}, "large": {"pretrain": {"batch": {"tokens": 512}}}}
    with pytest.raises(PretuneError) as caught:
        plan(arms=arms).check()
    text = str(caught.value)
    assert "the costs of the arms differ by 37.5 %, but a fair comparison allows at most 2 %" in text
    assert "small 640 tokens (10 steps of 64 tokens)" in text and "large 1,024 tokens (2 steps of 512 tokens)" in text
    assert "give a larger budget" in text


def test_an_arm_with_its_own_budget_is_refused() -> None:
    arms = {"a": {}, "b": {"pretrain": {"budget": {"tokens": 704}}}}
    with pytest.raises(PretuneError, match=r"differ by 9.1 %.* remove the budgets of single arms"):
        plan(arms=arms).check()
    within = {
        "a": {"pretrain": {"batch": {"tokens": 8, "max_length": 8}}},
        "b": {"pretrain": {"budget": {"tokens": 648}, "batch": {"tokens": 8, "max_length": 8}}},
    }
    plan(arms=within).check()


def test_the_search_counts() -> None:
    search = {"lr": [1e-3, 2e-3], "share": 0.5}
    found = plan(search=search)
    assert all(one.searched == one.spent == 640 and one.total == 1280 for one in found.arms)
    found.check()
    arms = {**ARMS, "rtd": {"pretrain": {"objective": "rtd"}, "search": {"lr": [1e-3, 2e-3, 4e-3], "share": 0.5}}}
    with pytest.raises(
        PretuneError,
        match=r"rtd 1,600 tokens \(10 steps of 64 tokens with 960 tokens of search\); give each arm as many",
    ):
        plan(search=search, arms=arms).check()


def test_controls_spend_nothing_and_do_not_count() -> None:
    found = plan(arms={**ARMS, "none": {"control": True}})
    found.check()
    none = next(one for one in found.arms if one.arm.name == "none")
    assert (none.steps, none.spent) == (0, 0.0)


def test_objectives_that_compute_more_get_fewer_steps() -> None:
    steps = {one.arm.name: one.steps for one in plan_study(read_study("quick"), "cpu").arms}
    assert steps["mlm"] > steps["rtd"] > steps["lm"] > steps["no pretraining"] == 0


def test_every_budget_is_planned() -> None:
    content = study_content()
    content["budget"] = {"tokens": [6400, 640]}
    found = plan_study(parse_study(content, "x"), "cpu")
    assert [(one.arm.name, one.budget, one.steps) for one in found.arms] == [
        ("mlm", 640, 10), ("mlm", 6400, 100), ("lm", 640, 10), ("lm", 6400, 100)
    ]  # fmt: skip


@pytest.mark.not_fast
@pytest.mark.parametrize(
    "model",
    [
        "electra-tiny",
        "gpt2-tiny",
        "t5-tiny",
        "xlnet-tiny",
        "bilstm-tiny",
        "albert-tiny",
        "awd-lstm-tiny",
        "deberta-tiny",
    ],
)
def test_models_of_every_kind_are_planned(model: str) -> None:
    base = {"model": model, "pretrain": {"data": "x.txt", "batch": {"tokens": 64, "max_length": 16}}}
    content = {**study_content(arms={"a": {}, "b": {"pretrain": {"optimizer": {"lr": 1e-4}}}}), "base": base}
    found = plan_study(parse_study(content, "x"), "cpu")
    assert all(one.step.flops > 0 for one in found.arms)


def test_fine_tuning_is_planned_by_its_batches() -> None:
    content = study_content(arms={"a": {}, "b": {"finetune": {"strategy": "frozen"}}})
    content |= {"base": {"model": "pretune-small-en"}, "budget": {"seconds": 5}}
    del content["evaluations"]["word"]["budget"]
    plan_study(parse_study(content, "x"), "cpu").check()


def test_errors_in_the_settings_of_an_arm_name_the_arm() -> None:
    with pytest.raises(PretuneError, match=r"arms.b: tokenizer.kind: .* did you mean 'byte-level-bpe'"):
        plan(arms={"a": {}, "b": {"pretrain": {"tokenizer": {"kind": "byte-bpe"}}}})


def test_the_vocabulary_of_a_store_and_of_a_given_tokenizer_is_planned_with(tmp_path: Path) -> None:
    text = Path(study_content()["base"]["pretrain"]["data"])
    pt.train_tokenizer(text, kind="wordpiece", vocab_size=300, out=tmp_path / "tokenizer")
    pt.prepare(text, tmp_path / "tokenizer", tmp_path / "store", processes=1)
    size = Tokenizer.load(tmp_path / "tokenizer").size
    costs = []
    for own in (
        {"tokenizer": {"vocab_size": size}},
        {"tokenizer": str(tmp_path / "tokenizer")},
        {"data": str(tmp_path / "store")},
    ):
        content = study_content()
        content["base"] = {
            "model": "bert-tiny",
            "pretrain": {"data": str(text), "batch": {"tokens": 64, "max_length": 16}, **own},
        }
        costs.append([one.step.flops for one in plan_study(parse_study(content, "x"), "cpu").arms])
    assert costs[0] == costs[1] == costs[2]
