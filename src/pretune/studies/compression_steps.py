"""Compress the fine-tuned model of an arm: distill, prune, or quantize it, step by step, within a budget."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.compression.distillation import DistillationJob, run_distillation
from pretune.compression.pruning import PruningSpec
from pretune.compression.pruning_job import PruningJob, run_pruning
from pretune.compression.quantization import QuantizationJob, run_quantization
from pretune.runtime.errors import PretuneError
from pretune.studies.arm_jobs import EvaluationRun, scaled, task_columns, task_options
from pretune.studies.study_file import Arm, CompressionStep
from pretune.studies.study_settings import COMPRESSION_KEYS, check_settings
from pretune.training.recipe_sections import Budget, Optimizer
from pretune.training.run_folder import Run, finished_run

COSTS = ("step", "tokens", "flops", "seconds")
TRAINED_FOR_INT8 = Path("intermediate", "qat")  # the run folder of quantization-aware training
PRUNING = ("drop_layers", "heads", "ffn_units", "sparsity")


def step_budget(arm: Arm, budget: Budget | None) -> Budget | None:
    """Return the budget of each compression step that trains: an equal part of the arm's budget."""
    if budget is None:
        return None
    count = max(1, sum(step.trains(arm.control) for step in arm.compress))
    return scaled(budget, 1 / count)


def compress_model(run: EvaluationRun) -> tuple[Path, dict[str, float]]:
    """Compress the fine-tuned model of a run; return the folder of the result, and the cost of training.

    Each step reads the model of the step before, and writes to the folder OUT-NUMBER-VERB. Finished steps are not
    repeated.
    """
    cost: dict[str, float] = {}
    arm, own = run.arm, replace(run, budget=step_budget(run.arm, run.budget))
    for number, step in enumerate(arm.compress, 1):
        folder = run.out.with_name(f"{run.out.name}-{number}-{step.verb}")
        if finished_run(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)  # of an interrupted step
            run_step(compression_job(replace(own, out=folder), step))
        if step.trains(arm.control):
            trained = folder / TRAINED_FOR_INT8 if step.verb == "quantize" else folder
            results = Run(trained).results
            cost = {name: cost.get(name, 0.0) + float(results[name]) for name in COSTS if name in results}
        own = replace(own, model=str(folder))
    return Path(own.model), cost


def compression_job(run: EvaluationRun, step: CompressionStep) -> DistillationJob | PruningJob | QuantizationJob:
    """Return the job of one compression step, with the examples of the task that the model was fine-tuned on."""
    arm, budget = run.arm, run.budget
    options = check_settings(COMPRESSION_KEYS[step.verb], step.settings, f"{arm.name}: {step.verb}")
    task = task_options(run)
    trains = step.trains(arm.control)
    common: dict[str, Any] = {"out": run.out, "columns": task_columns(task), "seed": run.seed, "device": run.device}
    common |= options
    common |= {"train": task["train"], "dev": task.get("dev"), "compare": False}  # the study does that itself
    if trains:
        if run.lr is not None:
            common["optimizer"] = replace(common.get("optimizer") or Optimizer(), lr=run.lr)
        common["batch"] = common.get("batch") or task.get("batch")
        common |= {} if budget is None else {"budget": budget}
    match step.verb:
        case "distill":
            return DistillationJob(teachers=[run.model], **common)
        case "prune":
            removed = {name: common.pop(name) for name in PRUNING if name in common}
            if not trains:
                common |= {"epochs": 0.0, "budget": None}
            elif budget is None:
                common.setdefault("epochs", 1.0)
            return PruningJob(model=run.model, pruning=PruningSpec(seed=run.seed, **removed), **common)
        case "quantize":
            if common.get("method", "dynamic") not in ("static", "qat"):
                del common["train"]
            return QuantizationJob(model=run.model, **common)
    raise PretuneError(
        f"{arm.name}: there is no compression step {step.verb!r}; choose a step such as 'prune' or 'quantize'"
    )


def run_step(job: DistillationJob | PruningJob | QuantizationJob) -> Run:
    """Execute a compression job, and return its run."""
    match job:
        case DistillationJob():
            return run_distillation(job)
        case PruningJob():
            return run_pruning(job)
        case QuantizationJob():
            return run_quantization(job)
