"""Train the encoder on parts of the rows: contrastive tuning, full fine-tuning, and LoRA."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import INTERMEDIATE
from pretune.runtime.parsing import read_json_lines
from pretune.runtime.progress import log_info, progress, quiet
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, FinetuningJob, finetune
from pretune.training.jobs.finetuning_defaults import default_pooling, finetuning_defaults
from pretune.training.jobs.strategies.comparison import Candidate, Comparison, candidate_data
from pretune.training.jobs.strategies.frozen_features import name_layers, with_features
from pretune.training.recipe_sections import Budget, Optimizer
from pretune.training.run_folder import RESULTS, Run, finished_run

STEPS = {"normal": (32, 96), "thorough": (64, 300)}  # least and most steps of a trained strategy
STEPS_PER_ROW = 0.25
CONTRASTIVE_ROWS = 1_000  # beyond which contrastive tuning gains nothing over full fine-tuning
TOP_LAYERS = 3  # that a classifier reads after contrastive tuning


def trained_candidates(comparison: Comparison, effort: str) -> list[Candidate]:
    """Return the candidates that train the encoder: contrastive tuning, full fine-tuning, and LoRA.

    Which of them are tried depends on the effort and on the data.
    """
    plan, own = comparison.plan, default_pooling(comparison.plan.model, [comparison.material.unfitted]) or "mean"
    found = [Candidate("full fine-tuning", plan.objective, "full")]
    few = len(comparison.rows) <= CONTRASTIVE_ROWS
    if comparison.kind == "classes" and comparison.rows.pairs is None and few:
        top = range(max(1, comparison.depth - TOP_LAYERS + 1), comparison.depth + 1)
        layers = name_layers(top) if comparison.concatenates else "last"
        objective = with_features(plan.objective, layers, own)
        contrastive = Candidate("contrastive tuning", objective, "contrastive", 0.5)
        found = [contrastive] if effort == "normal" else [contrastive, *found]
    if effort == "thorough":
        found += [replace(one, name=f"{one.name}, lower rate", lr_factor=one.lr_factor / 3) for one in found]
        found.append(Candidate("LoRA", plan.objective, "lora"))
    return found


def job_of(comparison: Comparison, candidate: Candidate, out: Path, rows: int, effort: str) -> FinetuningJob:
    """Return the job that fine-tunes a candidate on `rows` training rows, and writes to the folder `out`.

    `effort` limits the number of training steps.
    """
    plan = comparison.plan
    defaults = finetuning_defaults(plan.model, [comparison.material.unfitted], rows, candidate.strategy)
    optimizer: Optimizer = plan.optimizer
    lr = float(defaults.sections["optimizer"]["lr"]) * candidate.lr_factor
    layer_decay = 0.9 if candidate.strategy in ("full", "contrastive") else None
    least, most = STEPS.get(effort, STEPS["normal"])
    size = plan.batch.size or int(defaults.sections["batch"]["size"])
    if candidate.strategy == "contrastive":
        size = 2 * size  # pairs within a batch are what is learned from
    steps = int(np.clip(STEPS_PER_ROW * rows, least, most))
    return replace(
        plan,
        objective=candidate.objective,
        strategy=candidate.strategy,
        out=out,
        optimizer=replace(optimizer, lr=lr, layer_decay=optimizer.layer_decay or layer_decay),
        batch=replace(plan.batch, size=size),
        budget=Budget(steps=steps),
        num_seeds=1,
    )


def train_parts(
    comparison: Comparison, candidate: Candidate, chosen: Sequence[int], effort: str
) -> tuple[Array, float] | None:
    """Cross-validate a candidate on the `chosen` folds; return its predictions for them, and the seconds it took.

    The predictions have one row per example, with zeros outside the chosen folds. Folds that were trained before are
    read from the run folder. Return None if training diverged.
    """
    start = time.monotonic()
    predicted = np.zeros((len(comparison.rows), comparison.outputs))
    title = candidate.name
    with progress(title, total=len(chosen)) as bar:
        for done, part in enumerate(chosen):
            learned, held_out = np.flatnonzero(comparison.folds != part), np.flatnonzero(comparison.folds == part)
            folder = part_folder(comparison.plan, candidate, part)
            job = job_of(comparison, candidate, folder, len(learned), effort)
            job = replace(job, seed=comparison.plan.seed + part)
            rows = comparison.rows
            data = candidate_data(comparison, candidate, rows.take(learned), rows.take(held_out))
            if not (folder / RESULTS).is_file():
                try:
                    with quiet():
                        finetune(job, data, resume=folder.exists())
                except PretuneError as error:
                    if "not a number" not in str(error):
                        raise
                    log_info(f"  {title} failed: {error}")
                    comparison.failed.append(title)
                    return None
            answers = list(read_json_lines(folder / DEV_PREDICTIONS))
            predicted[held_out] = answer_matrix(comparison, answers)
            bar.update(done + 1)
    return predicted if comparison.kind != "number" else predicted[:, 0], time.monotonic() - start


def answer_matrix(comparison: Comparison, answers: Sequence[dict[str, Any]]) -> Array:
    """Convert the task's predictions, one dictionary per row, to a matrix of probabilities, (rows, classes).

    For regression, it holds standardized numbers, (rows, 1).
    """
    task = comparison.material.task.unwrapped
    if comparison.kind == "number":
        return np.array([[(answer["value"] - task.mean) / task.deviation] for answer in answers])
    return np.array([[answer["probabilities"][label] for label in task.labels] for answer in answers])


def part_folder(plan: FinetuningJob, candidate: Candidate, part: int) -> Path:
    """Return the folder of the training run in which a candidate predicts the fold `part`."""
    return search_folder(plan) / f"{candidate.name.replace(' ', '-').replace(',', '')}-{part}"


def finished_part(comparison: Comparison, candidate: Candidate) -> tuple[Run, int] | None:
    """Return a run of the cross-validation of a candidate, and on how many rows it was trained; None if none is finished."""
    for part in np.unique(comparison.folds):
        if (run := finished_run(part_folder(comparison.plan, candidate, int(part)))) is not None:
            return run, int((comparison.folds != part).sum())
    return None


def search_folder(plan: FinetuningJob) -> Path:
    """Return the folder, inside the run folder, of the training runs that compare strategies."""
    return plan.out / INTERMEDIATE / "strategies"
