"""Tests of recipes scaled to a budget: never more than the preset, the same proportions, within the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pretune as pt
from pretune.models.presets import preset_names
from pretune.runtime.errors import PretuneError
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from pretune.training.jobs.recipe_scaling import LEAST_SEQUENCES, LEAST_STEPS, ScalableRecipe, parse_budget, scale_to
from pretune.training.recipe_sections import Batching, Budget, Optimizer, Schedule
from tests.support.tiny_training_cases import store

BERT = ScalableRecipe(
    Budget(steps=1_000_000),
    Optimizer("adamw", 1e-4),
    Schedule("linear", 0.01),
    Batching(131_072, length_schedule=((0.9, 128), (1.0, 512))),
)
PER_TOKEN, PER_SECOND = 5e8, 1e12
UNITS = {"steps": 131_072.0, "tokens": 1.0, "flops": 1 / PER_TOKEN, "seconds": PER_SECOND / PER_TOKEN}


def scaled(limit: Budget, course: ScalableRecipe = BERT, **options: Any) -> tuple[ScalableRecipe, str]:
    return scale_to(limit, course, flops_per_token=PER_TOKEN, flops_per_second=PER_SECOND, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10min", Budget(seconds=600)),
        ("2h", Budget(seconds=7200)),
        ("90s", Budget(seconds=90)),
        ("1.5 days", Budget(seconds=129_600)),
        ("1e9tokens", Budget(tokens=1e9)),
        ("1e15flops", Budget(flops=1e15)),
        ("500steps", Budget(steps=500)),
        ("1_000 Steps", Budget(steps=1000)),
    ],
)
def test_budgets_are_parsed(text: str, expected: Budget) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize("text", ["", "ten", "10", "10 parsecs", "1e", "-5min", "1..5h"])
def test_invalid_budgets_are_rejected_in_one_line(text: str) -> None:
    with pytest.raises(PretuneError, match=r"--scale-to .* is not a budget; give one such as 10min"):
        parse_budget(text)


@given(st.sampled_from(sorted(UNITS)), st.floats(1.0, 1e14))
def test_scaled_recipe_exceeds_neither_the_preset_nor_the_budget(unit: str, tokens: float) -> None:
    amount = max(1.0, tokens / UNITS[unit])
    limit = Budget(steps=int(amount)) if unit == "steps" else Budget(**{unit: amount})
    made, how = scaled(limit)
    assert made.budget.limits[unit] <= amount
    assert made.batch.tokens is not None
    most = made.budget.limits.get("tokens", made.budget.limits.get("steps", 0) * made.batch.tokens)
    assert 0 < most <= 1_000_000 * 131_072
    longest = 512 * LEAST_SEQUENCES
    assert longest <= made.batch.tokens <= 131_072
    assert made.optimizer.lr is not None
    assert made.optimizer.lr == pytest.approx(1e-4 * (made.batch.tokens / 131_072) ** 0.5, rel=0.01)
    assert made.schedule == BERT.schedule  # warmup and stages are fractions of the budget
    assert made.batch.length_schedule == BERT.batch.length_schedule
    steps = min(amount * UNITS[unit], 131_072e6) / made.batch.tokens
    if unit != "steps" and made.batch.tokens > 2 * longest:
        assert steps >= LEAST_STEPS
    assert len(how.splitlines()) <= 2


def test_step_budget_keeps_the_batch_and_larger_budgets_change_nothing() -> None:
    made, how = scaled(Budget(steps=500))
    assert (made.budget, made.batch, made.optimizer) == (Budget(steps=500), BERT.batch, BERT.optimizer)
    assert "500 steps" in how and "5 are warmup" in how
    made, _ = scaled(Budget(steps=10**9))
    assert made == BERT
    made, _ = scaled(Budget(tokens=1e30))
    assert made.budget.limits == {"tokens": 131_072e6}
    assert made.batch == BERT.batch


def test_other_limits_of_the_recipe_are_kept() -> None:
    course = ScalableRecipe(
        Budget(seconds=420), Optimizer("muon", 3e-3, muon_lr=0.02), Schedule("linear", 0.1), Batching(131_072, 128)
    )
    made, how = scaled(Budget(tokens=1e6), course)
    assert made.budget == Budget(tokens=1e6, seconds=420)
    assert made.optimizer.muon_lr == pytest.approx(0.02 * (made.batch.tokens / 131_072) ** 0.5, rel=0.01)
    assert scaled(Budget(seconds=3600), course)[0].budget == Budget(seconds=420)
    assert "square root" in how


def test_sgd_rates_scale_linearly_and_batch_dependent_rates_are_kept() -> None:
    course = ScalableRecipe(Budget(tokens=1e9), Optimizer("sgd", 8.0), Schedule("constant", 0.0), Batching(65_536, 128))
    made, how = scaled(Budget(tokens=1e6), course)
    assert made.batch.tokens == 1024
    assert made.optimizer.lr == pytest.approx(8.0 / 64, rel=0.01)
    assert "in proportion" in how
    course = ScalableRecipe(
        course.budget, Optimizer("adamw", 1e-3, reference_batch_size=65_536), course.schedule, course.batch
    )
    assert scaled(Budget(tokens=1e6), course)[0].optimizer == course.optimizer


def test_given_batch_size_is_kept() -> None:
    made, _ = scaled(Budget(tokens=1e6), batch=32_768)
    assert made.batch.tokens == 32_768
    assert made.optimizer.lr == pytest.approx(5e-5)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_scaled(name: str) -> None:
    whole = resolve_pretraining(name, ["texts"], "run", {}, 0, "cpu")
    plan = resolve_pretraining(name, ["texts"], "run", {"scale_to": "1e8tokens"}, 0, "cpu")
    assert plan.budget.tokens is not None and plan.budget.tokens <= 1e8
    assert plan.batch.tokens is not None and whole.batch.tokens is not None
    assert plan.batch.tokens <= whole.batch.tokens
    assert (plan.schedule, plan.batch.length_schedule, plan.objective) == (
        whole.schedule,
        whole.batch.length_schedule,
        whole.objective,
    )


def test_given_options_take_precedence_and_two_budgets_are_rejected() -> None:
    options = {"scale_to": "1e7tokens", "batch": Batching(max_length=64), "optimizer": Optimizer(lr=3e-3)}
    plan = resolve_pretraining("bert-base", ["texts"], "run", options, 0, "cpu")
    assert (plan.batch.max_length, plan.batch.length_schedule, plan.optimizer.lr) == (64, None, 3e-3)
    with pytest.raises(PretuneError, match="remove --steps, --tokens"):
        resolve_pretraining("bert-base", ["texts"], "run", {"scale_to": "1h", "budget": Budget(steps=3)}, 0, "cpu")


@pytest.mark.not_fast
def test_recipe_of_the_run_has_the_resolved_values(tmp_path: Path) -> None:
    run = pt.pretrain("bert-tiny", store(), scale_to="600tokens", out=tmp_path / "run", batch=Batching(max_length=32))
    assert run.recipe["budget"]["tokens"] == 600
    assert run.recipe["batch"]["tokens"] < 4096
    assert "scale_to" not in run.recipe
