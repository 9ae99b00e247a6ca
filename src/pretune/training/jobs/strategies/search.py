"""Find out what works for a task with few labels: compare fine-tuning strategies by cross-validation, keep the best.

    a bag of words          TF-IDF of words and characters; for pairs also of common and different words
    frozen features         the encoder as it is, and a linear classifier on one or several of its layers
    contrastive tuning      supervised contrastive learning of the encoder, then a linear classifier on its vectors
    full fine-tuning        all weights
    LoRA                    low-rank adapters

Each is also averaged with the bag of words, where that helps (see `bag_share`). The first two need seconds. Of the others, `normal` effort tries only
the best one for most tasks: contrastive tuning for single texts, full fine-tuning for pairs and numbers. With `thorough` effort
all are trained on a part of the rows first, and the best of them on the other parts (successive halving; Jamieson and Talwalkar, 2016).
All are compared by the loss of their predictions for the same parts of the rows, which they have not seen, after calibration by one
temperature. With few rows, this loss is noisy, so a weaker strategy wins only if its loss is clearly lower. The winner is fitted to all rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pretune.models.presets import is_preset
from pretune.objectives import parse_objective
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.regress import Regress
from pretune.runtime.arrays import Array, softmax
from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.progress import log_info, progress
from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.bag_of_words import choose_bag
from pretune.training.jobs.finetuning import FinetuningJob, TaskData, find_task, read_task_data
from pretune.training.jobs.head_fitting import regression_targets
from pretune.training.jobs.strategies.comparison import (
    FEWEST_ROWS,
    FOLDS,
    Attempt,
    Comparison,
    calibrate,
    calibrated_loss,
    clearly_lower,
)
from pretune.training.jobs.strategies.frozen_features import try_features
from pretune.training.jobs.strategies.summary import describe_choice, learning_curve, summarize_attempt
from pretune.training.jobs.strategies.trained_encoders import train_parts, trained_candidates
from pretune.training.jobs.strategies.winner import evaluate_winner, fit_winner
from pretune.training.run_folder import RECIPE, Run, finish_run, remove_if_refused, start_run

MOST_ROWS = 2_000  # beyond which full fine-tuning is dependable, and a comparison would take long
HALVING_ROWS = 60  # from which the first part says enough about a trained strategy to stop it
SURVIVORS = 2  # trained strategies that are tried on all parts
PERFECT = 0.985  # the score of a cheap strategy beyond which no other is tried
SHARES = (0.25, 0.5, 0.75)  # of the bag of words, beside a trained network
FROZEN_SHARES = np.linspace(0, 1, 21)  # of the bag of words, beside frozen features
LEAST_SHARE = 0.05  # below which the bag of words is left out
PRIOR_ROWS = 800.0  # the prior of a share s, given n rows, is proportional to exp(-s · PRIOR_ROWS / n)
BAG_ERRORS = 2.0  # standard errors by which a bag of words must lower the loss of a trained network


def auto_obstacle(plan: FinetuningJob) -> str:
    """Return why strategies cannot be compared for a job (its task, model, or options), or "" if they can."""
    try:
        task: Any = find_task(parse_objective(plan.objective))
    except PretuneError:
        return "there are several objectives"
    if not isinstance(task, Classify | Regress) or task.name != task.kind:
        return f"the task is {task.name}"
    if "+" in plan.objective or "|" in plan.objective:
        return "there are several objectives"
    if is_preset(plan.model) or plan.from_scratch:
        return "the model starts from random weights"
    if isinstance(task, Classify) and task.hidden_size:
        return "the head has a hidden layer"
    given = [name for name in ("unlabeled", "word_vectors", "dropout", "budget", "shots") if getattr(plan, name)]
    return f"{given[0]} is given" if given else ""


def compare_strategies(plan: FinetuningJob, resume: bool = False) -> tuple[Run, TaskData] | None:
    """Compare strategies for the job `plan` by cross-validation, and fit the best one to all rows.

    Return the run of the best strategy, and the data on which it is evaluated: the dev file or, without a dev file, the
    rows themselves, each predicted by a model that had not seen it. Return None if there are too many or too few rows
    for a comparison.
    """
    start = time.monotonic()
    material = read_task_data(plan, hold_out=False)
    if not FEWEST_ROWS <= len(material.rows) <= MOST_ROWS:
        return None
    if material.dev is not None:
        material.task.check_labels(material.dev)
    new = not (plan.out / RECIPE).is_file()
    start_run(plan.out, "finetune", plan.recipe(), resume)
    with remove_if_refused(plan.out, new):
        return run_comparison(plan, material, start)


def run_comparison(plan: FinetuningJob, material: TaskData, start: float) -> tuple[Run, TaskData]:
    """Compare strategies for the job `plan` by cross-validation, and fit the best one to all rows of `material`.

    Return the run of the best strategy, and the data on which it is evaluated. `start` is the time when the job began.
    """
    effort = plan.effort
    targets, kind, outputs, weights = regression_targets(material.task, material.rows)
    folds = assign_folds(material.rows, FOLDS[effort], plan.seed)
    if kind == "classes" and np.bincount(targets, minlength=outputs).min() < 2:
        log_info("a class has a single example, so its score in cross-validation means little; add examples of it")
    comparison = Comparison(plan, material, folds, targets, kind, outputs, weights)
    quicker = "" if effort == "quick" else if_option("effort", "; --effort quick takes seconds")
    log_info(f"comparing strategies by cross-validation on {len(material.rows):,} examples ({effort} effort{quicker})")
    attempts: list[Attempt] = []
    stopped = False
    try:
        for attempt in try_candidates(comparison, effort):
            attempts.append(attempt)
            mean, low, high = np.mean(attempt.scores), min(attempt.scores), max(attempt.scores)
            numbers = f"{material.primary_metric} {mean:.3f} ({low:.3f} to {high:.3f} by part)"
            log_info(f"  {attempt.name}: {numbers}, {attempt.seconds:.0f} s")
    except KeyboardInterrupt:
        if not attempts:
            raise
        stopped = True
        log_info("stopped early; keeping the best so far")
    best = choose_attempt(comparison, attempts)
    run, interrupted = fit_winner(comparison, best)
    found: dict[str, Any] = {
        "strategy": best.name,
        "stopped_early": stopped or interrupted,
        "search_seconds": round(time.monotonic() - start, 1),
        "failed": comparison.failed,
        "tried": {attempt.name: summarize_attempt(comparison, attempt) for attempt in attempts},
        "learning_curve": learning_curve(comparison, best),
    }
    for line in describe_choice(comparison, attempts, best, found["learning_curve"]):
        log_info(line)
    evaluated = evaluate_winner(comparison, best, run)
    return finish_run(plan.out, {**Run(plan.out).results, **evaluated[0], **found}), evaluated[1]


def choose_attempt(comparison: Comparison, attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt with the lowest loss, or a stronger one whose loss is not clearly higher.

    An attempt that trained the encoder is stronger than one on frozen features, and that one than a bag of words: in
    cross-validation, every attempt learns from a part of the rows; the winner learns from all rows, and attempts that
    train the encoder gain more from the additional rows. For few rows, noise would often choose a bag of words.
    """
    strongest = max(map(strength, attempts))
    best = min((one for one in attempts if strength(one) == strongest), key=lambda one: one.loss)
    for level in range(strongest - 1, -1, -1):
        others = [one for one in attempts if strength(one) == level]
        other = min(others, key=lambda one: one.loss, default=best)
        errors = BAG_ERRORS if level == 0 else 1.0
        if clearly_lower(comparison.losses(other.predicted), comparison.losses(best.predicted), errors):
            best = other
    return best


def strength(attempt: Attempt) -> int:
    """Return how much of a model an attempt uses: 0 for a bag of words, 1 for frozen features, 2 for a trained encoder."""
    if attempt.share == 1:
        return 0
    return 1 if attempt.candidate.strategy == "features" else 2


def try_candidates(comparison: Comparison, effort: str) -> Iterator[Attempt]:
    """Try strategies in order of cost, and yield their attempts.

    If there are many rows, the strategies that train the encoder are first tried on one fold only, and the best of
    them on all folds. `effort` is "quick" (the encoder is not trained), "normal", or "thorough".
    """
    start = time.monotonic()
    with progress("bag of words"):
        rows, weights = comparison.rows, comparison.weights
        comparison.bag = choose_bag(
            rows, comparison.targets, comparison.kind, comparison.outputs, comparison.folds, weights
        )
    words_seconds = time.monotonic() - start
    frozen = try_features(comparison)
    words = Attempt(frozen.candidate, comparison.bag.validated.predicted, words_seconds, share=1.0)
    comparison.words = finish_attempt(comparison, words)
    cheap = [words, finish_attempt(comparison, frozen)]
    yield from cheap
    best = min(cheap, key=lambda attempt: attempt.loss)
    if effort == "quick" or comparison.score(best.predicted) >= PERFECT:
        return
    trained = trained_candidates(comparison, effort)
    if len(comparison.rows) >= HALVING_ROWS and len(trained) > SURVIVORS:
        held_out = np.flatnonzero(comparison.folds == 0)
        first = {}
        for candidate in trained:
            if (found := train_parts(comparison, candidate, [0], effort)) is not None:
                first[candidate] = calibrated_loss(comparison, found[0], held_out)
        trained = sorted(first, key=lambda candidate: first[candidate])[:SURVIVORS]
    for candidate in trained:
        if (found := train_parts(comparison, candidate, range(FOLDS[effort]), effort)) is not None:
            yield finish_attempt(comparison, Attempt(candidate, *found))


def finish_attempt(comparison: Comparison, attempt: Attempt) -> Attempt:
    """Calibrate an attempt's predictions, average them with those of a bag of words, and set its loss and its scores."""
    attempt.calibration = calibrate(comparison, attempt.predicted)
    attempt.predicted = attempt.calibration.apply(attempt.predicted, comparison.frequencies, comparison.kind)
    if comparison.words is not None:
        words = comparison.words.predicted
        attempt.share = bag_share(comparison, attempt, words)
        attempt.predicted = (1 - attempt.share) * attempt.predicted + attempt.share * words
    attempt.loss = float(comparison.losses(attempt.predicted).mean())
    parts = (np.flatnonzero(comparison.folds == fold) for fold in np.unique(comparison.folds))
    attempt.scores = [comparison.score(attempt.predicted, part) for part in parts]
    return attempt


def bag_share(comparison: Comparison, attempt: Attempt, words: Array) -> float:
    """Return the weight of the predictions `words` of the bag of words in an average with those of an attempt.

    For classifiers on frozen features, it is the posterior mean of the weight, given the log-likelihood of the targets in
    cross-validation and a prior that is the closer to 0 the fewer rows there are: with 25 rows, the likelihood says little, and
    a bag of words is usually worse. For other attempts, the bag of words must clearly lower the loss.
    """

    def losses(share: float) -> Array:
        return comparison.losses((1 - share) * attempt.predicted + share * words)

    if strength(attempt) != 1 or comparison.kind != "classes":
        best = min(SHARES, key=lambda share: losses(share).mean())
        return best if clearly_lower(losses(best), losses(0.0), BAG_ERRORS) else 0.0
    prior = PRIOR_ROWS / len(comparison.rows) * FROZEN_SHARES
    posterior = softmax(-prior - np.array([losses(float(share)).sum() for share in FROZEN_SHARES]))
    found = float(posterior @ FROZEN_SHARES)
    return round(found, 3) if found >= LEAST_SHARE else 0.0


def explain_full(obstacle: str) -> None:
    """Log that full fine-tuning is used, and why: because of `obstacle` or, if this is "", the number of examples."""
    obstacle = obstacle or f"a comparison needs {FEWEST_ROWS} to {MOST_ROWS:,} examples"
    advice = if_option("strategy", "; choose another with --strategy")
    log_info(f"strategy: full fine-tuning, without a comparison of strategies, because {obstacle}{advice}")
