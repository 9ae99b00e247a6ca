"""Tiny versions of studies: for a dry run on a CPU, and for a smoke test on a GPU that executes every arm and every evaluation once.

The smoke test has the batches, the models, and the files of the studies, but few steps, one seed, and no search, so that failures show
before the budget is spent. It also measures the speed of steps, from which `project` computes how long the studies will take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from study_estimates import FINETUNING_HOST_SECONDS, PACKING, finetuning_steps

from pretune.runtime.recipe import merge_recipes
from pretune.studies.planning import plan_study
from pretune.studies.study_file import FINETUNING, PRETRAINING, parse_budgets, parse_study
from pretune.studies.study_run import Outcome
from pretune.studies.study_settings import AFTERWARDS

TOY_TOKENS = 256  # per step of a dry run
SMOKE_STEPS, SMOKE_TASK_STEPS, SMOKE_TEXTS = 24, 12, 32


def toy_content(content: dict[str, Any], divide: float) -> dict[str, Any]:
    """Return the content of a study file for a dry run: with budgets divided by a number, and small and few steps."""
    unit, amounts = parse_budgets(content["budget"], "study")
    stage = parse_study(content, "study").stage
    content = {**content, "budget": {unit: amounts[-1] / divide}}
    arms = [content.get("base") or {}, *(content.get("arms") or {}).values()]
    if any("pretrain" in (arm or {}) for arm in arms):
        content["base"] = merge_recipes(content.get("base") or {}, {"pretrain": {"batch": {"tokens": TOY_TOKENS}}})
    if "search" in content:
        content["search"] = {**content["search"], "lr": content["search"]["lr"][:2]}
    for arm in content.get("arms", {}).values():
        if "search" in (arm or {}):
            arm["search"] = {**arm["search"], "lr": arm["search"]["lr"][:2]}
    own: dict[str, Any] = {} if stage == FINETUNING else {"budget": {"steps": 2}}
    content["evaluations"] = {
        name: merge_recipes(one, {**own, "batch": {"size": 8}} if one["kind"] == "task" else {})
        for name, one in content["evaluations"].items()
    }
    return content


def smoke_content(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a study file for a smoke test: few steps of the same size, one seed, and no search."""
    study = parse_study(content, "study")
    most = max(one.step.of(study.unit) for one in plan_study(study, "cpu").arms)
    evaluations = {}
    for name, one in content["evaluations"].items():
        if one["kind"] in AFTERWARDS:
            continue
        own: dict[str, Any] = {}
        if one["kind"] == "task" and study.stage != FINETUNING:
            own = {"budget": {"steps": SMOKE_TASK_STEPS}}
        elif one["kind"] in ("perplexity", "vocabulary", "translation"):
            own = {"limit": SMOKE_TEXTS}
        evaluations[name] = {**one, **own}
    kept = {key: value for key, value in content.items() if key not in ("search", "expect", "reference")}
    kept["arms"] = {
        name: {key: value for key, value in (arm or {}).items() if key != "search"}
        for name, arm in (content.get("arms") or {}).items()
    }
    return {**kept, "seeds": 1, "budget": {study.unit: SMOKE_STEPS * most}, "evaluations": evaluations}


def project(content: dict[str, Any], name: str, seeds: int, smoke: Mapping[str, Outcome]) -> float:
    """Return the seconds of one worker that a study is projected to take, given the outcomes of its smoke test by arm.

    Workers are as slow as in the smoke test, in which as many of them share the GPU. Arms without an outcome are left
    out.
    """
    study = replace(parse_study(content, name), seeds=seeds)
    total = 0.0
    for plan in plan_study(study, "cpu").arms:
        outcome = smoke.get(plan.arm.name)
        if outcome is None or outcome.error is not None:
            continue
        steps, training = outcome.cost.get("step", 0.0), outcome.cost.get("seconds", 0.0)
        rounds = 1 if study.stage == PRETRAINING else sum(one.kind == "task" for one in study.evaluations)
        own = PACKING * plan.steps * training / steps * rounds if steps else 0.0
        fixed = outcome.seconds - training * (rounds if steps else 0)
        scoring = {one.name: finetuning_steps(one, study.stage) * FINETUNING_HOST_SECONDS for one in study.evaluations}
        total += study.seeds * (own + fixed + sum(scoring.values()))
        if (search := plan.arm.search) is not None:
            kinds = sum(one.kind not in AFTERWARDS for one in study.evaluations)
            total += len(search.rates) * (search.share * own + fixed / kinds + scoring[search.by])
    return total


def project_all(
    contents: Mapping[str, dict[str, Any]], outcomes: Mapping[str, list[Outcome]], seeds: int
) -> dict[str, float]:
    """Return the projected seconds of one worker for each study, by name."""
    return {
        name: project(content, name, seeds, {one.arm: one for one in outcomes.get(name, [])})
        for name, content in contents.items()
    }
