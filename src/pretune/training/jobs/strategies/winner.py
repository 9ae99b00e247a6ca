"""Fit the strategy that won to all rows, and evaluate it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import torch

from pretune.inference.predict import Predictor, load_task_model
from pretune.metrics import positive_class, score
from pretune.objectives.tasks.bag_of_words import BagOfWords
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.runtime.progress import log_info, progress, quiet
from pretune.training.jobs.bag_of_words import fit_bag
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, TaskData, finetune, write_predictions
from pretune.training.jobs.strategies.calibration import Calibration
from pretune.training.jobs.strategies.comparison import Attempt, Comparison, candidate_data
from pretune.training.jobs.strategies.trained_encoders import finished_part, job_of, search_folder
from pretune.training.run_folder import Run, copy_run_files, finish_run


def fit_winner(comparison: Comparison, best: Attempt) -> tuple[Run, bool]:
    """Fit the best candidate to all rows, calibrate it, and save it in the run folder.

    Return its run, and whether an interrupt has replaced it by a run of the cross-validation, which has seen fewer rows.
    If its predictions are averaged with those of a bag of words, the bag of words is saved with it.
    """
    plan = comparison.plan
    run, interrupted = train_winner(comparison, best)
    with quiet():
        results = run.results
        copy_run_files(run.folder, plan.out)
        finish_run(plan.out, results)
        model, trained = load_task_model(plan.out)
        if best.share < 1:
            calibrate_head(comparison, best.calibration, model.root.heads[trained.name])
        if best.share and comparison.bag is not None:
            bag = fit_bag(
                comparison.bag, comparison.rows, comparison.targets, comparison.kind, comparison.outputs,
                comparison.weights,
            )  # fmt: skip
            model.bag_of_words = on_scale(comparison, best, bag)
        model.save(plan.out)
    shutil.rmtree(search_folder(plan), ignore_errors=True)
    return finish_run(plan.out, results), interrupted


def train_winner(comparison: Comparison, best: Attempt) -> tuple[Run, bool]:
    """Train the best candidate on all rows; return its run, and whether an interrupt has replaced it.

    After an interrupt, the run is one of the cross-validation of the candidate. If there is none, because the candidate
    is a classifier on frozen features, it is fitted nevertheless, as this takes seconds; a second interrupt is an error.
    """
    folder = search_folder(comparison.plan) / "winner"
    job = job_of(comparison, best.candidate, folder, len(comparison.rows), "normal")
    data = candidate_data(comparison, best.candidate, comparison.rows)

    def train() -> Run:
        shutil.rmtree(folder, ignore_errors=True)
        with progress(f"fitting {best.name} to all examples"), quiet():
            return finetune(job, data)

    try:
        return train(), False
    except KeyboardInterrupt:
        kept = finished_part(comparison, best.candidate)
        if kept is None:
            log_info(f"stopping after {best.name} is fitted, in seconds; interrupt again to keep nothing")
            return train(), False
        run, rows = kept
        log_info(
            f"stopped early; keeping a model of the cross-validation of {best.name}, "
            f"which learned from {rows:,} of {len(comparison.rows):,} examples"
        )
        return run, True


def on_scale(comparison: Comparison, best: Attempt, bag: BagOfWords) -> BagOfWords:
    """Return the fitted bag of words `bag` in the form in which it is saved with the winner.

    It gets its weight in the average, `best.share`. For regression, its outputs are converted to the original scale;
    otherwise, its probabilities are calibrated.
    """
    weight, bias = bag.weight, bag.bias
    if comparison.kind == "number":
        task = comparison.material.task.unwrapped
        weight, bias = weight * task.deviation, bias * task.deviation + task.mean
    elif comparison.words is not None:
        found = comparison.words.calibration
        added = found.bias(comparison.frequencies, comparison.kind)
        weight, bias = weight * found.sharpness, bias * found.sharpness + added
    return replace(bag, weight=weight, bias=bias, share=best.share)


@torch.no_grad()
def calibrate_head(comparison: Comparison, calibration: Calibration, head: Any) -> None:
    """Fold a calibration into the weights of a classifier's output layer, if the layer is linear and has a bias."""
    output = (head.head if isinstance(head, LayerFeaturesHead) else head).output
    if comparison.kind == "number" or not isinstance(output, torch.nn.Linear) or output.bias is None:
        return
    added = calibration.bias(comparison.frequencies, comparison.kind)
    output.weight.mul_(calibration.sharpness)
    output.bias.mul_(calibration.sharpness).add_(torch.from_numpy(added).to(output.bias))


def evaluate_winner(comparison: Comparison, best: Attempt, run: Run) -> tuple[dict[str, Any], TaskData]:
    """Return the winner's scores, and the data they are from: the dev file, or all rows by cross-validation."""
    material = comparison.material
    if material.dev is not None:
        model, task = load_task_model(run.folder)
        length = min(comparison.plan.batch.max_length or 128, model.longest or 1 << 30)
        answers = Predictor(model, task, material.dev, length).report_truncated()()
        scores = score(material.task, answers, material.dev)
    else:
        answers = comparison.answers(best.predicted)
        scores = score(material.task, answers, material.rows)
        material = replace(material, dev=material.rows, folds=comparison.folds)
    write_predictions(run.folder / DEV_PREDICTIONS, answers)
    results: dict[str, Any] = {f"dev/{name}": value for name, value in scores.items()}
    results |= {"positive_class": positive_class(material.task)} if positive_class(material.task) is not None else {}
    return {**results, "cross_validated": comparison.material.dev is None}, material
