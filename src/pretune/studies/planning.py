"""Plan a study: the steps and the cost of each arm, and the check that all arms spend the same.

Costs are computed from the shapes of the models, without data or weights: full sequences, and the largest number of targets. A run
ends after the step that reaches its budget, so that a budget of few steps is exceeded by a part of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretune.models.create_model import make_model
from pretune.models.hf_config import read_config
from pretune.models.model import Model, Network
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.objectives import parse_objective
from pretune.objectives.joint import JointObjective
from pretune.packed import Batch, Targets, pack
from pretune.runtime.devices import choose_device, peak_flops
from pretune.runtime.errors import PretuneError
from pretune.studies.arm_jobs import EvaluationRun, finetuning_job, pretraining_job, scaled, training_stages
from pretune.studies.study_file import Arm, Study, format_amount, run_budget
from pretune.text.packing.sequences import Packing
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.training.flops import Flops
from pretune.training.jobs.finetuning_defaults import BATCH
from pretune.training.jobs.pretraining_model import ROUND_VOCABULARY
from pretune.training.jobs.pretraining_settings import PretrainingJob, is_store, split_language
from pretune.training.jobs.recipe_scaling import GUESSED_PEAK_FLOPS, UTILIZATION

TOLERANCE = 0.02  # by which the arms may differ in what they spend
NOWHERE = Path("plan")


@dataclass(frozen=True)
class StepCost:
    """The estimated cost of a training step: tokens, FLOPs, and seconds."""

    tokens: float
    flops: float
    seconds: float

    def of(self, unit: str) -> float:
        """Return the cost of a training step in the unit `unit` of a budget, such as "flops"."""
        return {"tokens": self.tokens, "flops": self.flops, "seconds": self.seconds, "steps": 1.0}[unit]


@dataclass(frozen=True)
class ArmPlan:
    """The planned cost of one run of an arm (compared recipe), and of its search for a learning rate."""

    arm: Arm
    unit: str
    budget: float  # of the study
    step: StepCost  # of the last stage
    steps: int  # of the run; 0: a control
    spent: float  # of the unit, by the run
    searched: float  # of the unit, by the search
    seconds: float  # of training in the run, estimated

    @property
    def total(self) -> float:
        """The planned cost of the arm in the unit of the budget, including its search for a learning rate."""
        return self.spent + self.searched

    def row(self) -> dict[str, Any]:
        """Return the planned cost of the arm as a row of the table that a dry run shows."""
        name = {"flops": "FLOPs"}.get(self.unit, self.unit)
        row: dict[str, Any] = {
            "arm": self.arm.name,
            "model": self.arm.model,
            "budget": format_amount(self.unit, self.budget),
        }
        row |= {"steps": self.steps, name: float(f"{self.spent:.4g}"), "search": float(f"{self.searched:.4g}")}
        return row | {"minutes": round(self.seconds / 60, 2)}


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study: the planned cost of each arm (compared recipe) at each budget."""

    study: Study
    arms: tuple[ArmPlan, ...]

    def of(self, arm: Arm, budget: float) -> ArmPlan:
        """Return the planned cost of an arm at one of the study's budgets."""
        return next(plan for plan in self.arms if plan.arm.name == arm.name and plan.budget == budget)

    @property
    def seconds(self) -> float:
        """The estimated duration of all training in seconds, without evaluations.

        The estimate is rough unless the speed of the device was measured.
        """
        each = [(plan.seconds, plan) for plan in self.arms]
        return sum(one * (self.study.seeds + (plan.arm.search.cost if plan.arm.search else 0)) for one, plan in each)

    def facts(self) -> dict[str, Any]:
        """Return what a dry run shows in addition to the table of arms: the number of runs, and the estimated time."""
        study = self.study
        return {
            "question": study.question,
            "runs": len(self.arms) * study.seeds
            + sum(len(plan.arm.search.rates) for plan in self.arms if plan.arm.search),
            "evaluations": ", ".join(f"{one.name} ({one.kind})" for one in study.evaluations),
            "minutes_of_training": round(self.seconds / 60, 1),
            "note": "minutes are estimated from FLOPs, without evaluations; `pretune roofline` measures the speed of this machine",
        }

    def check(self) -> None:
        """Raise an error if the planned costs of the arms differ by more than 2 %; its message has the costs."""
        for budget in self.study.budgets:
            plans = [plan for plan in self.arms if plan.budget == budget and not plan.arm.control]
            spent = [plan.total for plan in plans]
            difference = 1 - min(spent) / max(spent)
            if difference > TOLERANCE:
                figures = ", ".join(f"{plan.arm.name} {describe_spent(plan)}" for plan in plans)
                raise PretuneError(
                    f"the costs of the arms differ by {100 * difference:.1f} %, but a fair comparison allows at most "
                    f"{100 * TOLERANCE:.0f} %: {figures}; {advice(plans)}"
                )


def describe_spent(plan: ArmPlan) -> str:
    """Return the planned cost of an arm (compared recipe), and what it consists of, as text for an error message."""
    search = f" with {format_amount(plan.unit, plan.searched)} of search" if plan.searched else ""
    per_step = "" if plan.unit == "seconds" else f" of {format_amount(plan.unit, plan.step.of(plan.unit))}"
    return f"{format_amount(plan.unit, plan.total)} ({plan.steps:,} steps{per_step}{search})"


def advice(plans: Sequence[ArmPlan]) -> str:
    """Return advice on what to change in the study file so that all arms (compared recipes) have the same cost."""
    if len({len(plan.arm.search.rates) if plan.arm.search else 0 for plan in plans}) > 1:
        return "give each arm as many learning rates to search"
    if any((plan.arm.pretrain or {}).get("budget") for plan in plans):
        return "remove the budgets of single arms"
    return "give a larger budget, or smaller steps (batch.tokens, or batch.size for fine-tuning), so that the last step matters less"


def plan_study(study: Study, device: str | None = None) -> StudyPlan:
    """Return the plan of a study; its method `check` raises an error if the compared recipes have different costs."""
    speed = UTILIZATION * (peak_flops(choose_device(device)) or GUESSED_PEAK_FLOPS)
    plans = []
    for arm in study.arms:
        for budget in study.budgets:
            with naming(arm):
                plans.append(plan_arm(study, arm, budget, speed))
    return StudyPlan(study, tuple(plans))


def plan_arm(study: Study, arm: Arm, budget: float, speed: float) -> ArmPlan:
    """Return the planned cost of an arm at a budget; `speed` is the speed of the device in FLOPs per second."""
    limit, steps, spent, searched, seconds = run_budget(study.unit, budget), 0, 0.0, 0.0, 0.0
    for stage, share in training_stages(arm):
        step = step_cost(study, stage, speed)
        limits = scaled(limit, share).limits
        if stage.pretrain is not None:
            limits = pretraining_job(stage, scaled(limit, share), 0, NOWHERE).budget.limits
        own, cost = spend(limits, step, study.unit)
        steps, spent, seconds = steps + own, spent + cost, seconds + own * step.seconds
        if arm.search is not None:
            trial = {unit: arm.search.share * amount for unit, amount in limits.items()}
            searched += len(arm.search.rates) * spend(trial, step, study.unit)[1]
    if arm.control:
        steps, spent, seconds = 0, 0.0, 0.0
    return ArmPlan(arm, study.unit, budget, step, steps, spent, searched, seconds)


@contextmanager
def naming(arm: Arm) -> Iterator[None]:
    """Return a context manager that adds the name of an arm (compared recipe) to errors in its block."""
    try:
        yield
    except PretuneError as error:
        raise PretuneError(f"arms.{arm.name}: {error}") from error


def spend(limits: dict[str, float], step: StepCost, unit: str) -> tuple[int, float]:
    """Return the number of steps until training reaches one of its limits, and the cost of these steps in `unit`.

    >>> spend({"tokens": 1000.0}, StepCost(tokens=300, flops=6e5, seconds=0.1), "tokens")
    (4, 1200)
    """
    steps = max(1, min(math.ceil(limit / step.of(name) - 1e-9) for name, limit in limits.items()))
    if list(limits) == ["seconds"] and unit == "seconds":  # a step is short, and its duration only a guess
        return steps, limits["seconds"]
    return steps, steps * step.of(unit)


def step_cost(study: Study, arm: Arm, speed: float) -> StepCost:
    """Return the estimated cost of a training step of an arm (compared recipe).

    `speed` is the speed of the device in FLOPs per second.
    """
    if arm.pretrain is not None:
        job = pretraining_job(arm, run_budget(study.unit, study.budgets[0]), 0, NOWHERE)
        tokens, flops = pretraining_step(job)
    else:
        task = next(one for one in study.evaluations if one.kind == "task")
        budget = run_budget(study.unit, study.budgets[0])
        plan = finetuning_job(EvaluationRun(arm, task, arm.model, 0, NOWHERE, budget))
        # The examples are not read here; on average, they fill half of the longest length.
        tokens = (plan.batch.size or BATCH) * (plan.batch.max_length or 128) / 2
        sizes = Flops(meta_model(arm.model, None).root)
        flops = sizes.training(full_batch([int(tokens)], {}, plan.batch.max_length or 128))
    return StepCost(tokens, flops, flops / speed)


def pretraining_step(job: PretrainingJob) -> tuple[float, float]:
    """Return the number of tokens and the estimated FLOPs of one step of a pretraining job."""
    mixture = parse_objective(job.objective)
    with torch.device("meta"):
        model = meta_model(job.model, vocabulary_size(job) if is_preset(job.model) else None)
        model.add_heads(mixture.objectives)
    tokens, lengths = job.batch.tokens or 1, [length for _, length in job.batch.length_schedule or ()]
    length = min(tokens, max(lengths) if lengths else job.batch.max_length or 128)
    flops = sum(share * joint_flops(model, joint, tokens, length) for share, joint in mixture.shares)
    return float(tokens), flops / sum(share for share, _ in mixture.shares)


def vocabulary_size(job: PretrainingJob) -> int | None:
    """Return the vocabulary size of a new model, if it is known before the text is read; else None."""
    if isinstance(job.tokenizer, dict):
        size: int | None = job.tokenizer.get("vocab_size")
        return size
    stores = [path for _, path in map(split_language, job.data) if is_store(path)]
    folder = job.tokenizer or (stores[0] if stores else None)
    return None if folder is None or not Path(folder).is_dir() else tokenizer_size(folder)


@cache
def tokenizer_size(folder: str) -> int:
    """Return the vocabulary size of the tokenizer in a folder."""
    return Tokenizer.load(folder).size


def joint_flops(model: Model, joint: JointObjective, tokens: int, length: int) -> float:
    """Return the FLOPs of a training step, with `tokens` tokens in full sequences of length `length`.

    The objectives in `joint` share a forward pass.
    """
    packing = Packing(tokens=tokens, length=length, sequences=max(1, tokens // length))
    targets: dict[str, float] = {}
    for part in joint.objectives:
        targets |= part.max_targets(packing)
    sides = 2 if any(part.two_sided for part in joint.objectives) else 1
    return Flops(model.root).training(full_batch([tokens // sides] * sides, targets, length))


def full_batch(tokens: Sequence[int], targets: dict[str, float], length: int) -> Batch:
    """Return a batch of full sequences that is only used to count FLOPs.

    `tokens` has the number of tokens of each packed stream (source and target), `targets` the number of targets by
    loss term, and `length` is the length of the sequences.
    """
    rows = max(1, max(tokens) // length)
    sides = tuple(pack(np.zeros(rows * (one // rows), np.int64), np.full(rows, one // rows)) for one in tokens)
    nothing = Targets(*(torch.zeros(0) for _ in range(3)))
    return Batch(
        sides,
        dict.fromkeys(targets, nothing),
        {name: float(count) for name, count in targets.items()},
        rows=np.arange(rows),
    )


def meta_model(name: str, vocabulary: int | None) -> Model:
    """Return the model or preset `name` on the meta device, where it has shapes but no weights.

    `vocabulary` is the vocabulary size of a preset.
    """
    with torch.device("meta"):
        if is_preset(name):
            size = None if vocabulary is None else -(-vocabulary // ROUND_VOCABULARY) * ROUND_VOCABULARY
            return make_model(name, size)
        family, content = read_config(find_folder(name))
        config = family.read_config(content)
        return Model(family, config, Network(family.build(config)))
