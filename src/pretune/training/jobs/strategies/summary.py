"""Describe a comparison of strategies: what was tried, what won and by how much, what more labels would bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pretune.text.examples.splits import assign_folds
from pretune.training.jobs.bag_of_words import choose_bag
from pretune.training.jobs.linear_models import cross_validate
from pretune.training.jobs.strategies.comparison import FEWEST_ROWS, Attempt, Comparison

CURVE = (0.25, 0.5, 1.0)  # shares of the rows at which the learning curve is measured


def summarize_attempt(comparison: Comparison, attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as a row of the table of results: score, standard deviation over folds, loss, and seconds."""
    return {
        comparison.material.primary_metric: round(comparison.score(attempt.predicted), 4),
        "sd": round(float(np.std(attempt.scores)), 4),
        "loss": round(attempt.loss, 4),
        "seconds": round(attempt.seconds, 1),
        "objective": attempt.candidate.objective,
        "strategy": attempt.candidate.strategy,
    }


def learning_curve(comparison: Comparison, best: Attempt) -> dict[int, float]:
    """Return the cross-validated score of a cheap strategy for several numbers of training rows (rows → score).

    It is the bag of words if this is the best strategy, and otherwise frozen features.
    """
    if len(comparison.rows) < 4 * FEWEST_ROWS:
        return {}
    found = {}
    order = np.random.default_rng(comparison.plan.seed).permutation(len(comparison.rows))
    for share in CURVE:
        rows = np.sort(order[: round(share * len(order))])
        part = comparison.rows.take(rows)
        folds = assign_folds(part, int(comparison.folds.max()) + 1, comparison.plan.seed)
        smaller = replace(
            comparison, material=replace(comparison.material, rows=part), targets=comparison.targets[rows], folds=folds
        )
        weights = None if comparison.weights is None else comparison.weights[rows]
        if best.share == 1 or comparison.vectors is None:
            chosen = choose_bag(part, smaller.targets, comparison.kind, comparison.outputs, folds, weights)
            predicted = chosen.validated.predicted
        else:
            predicted = cross_validate(
                comparison.vectors[rows], smaller.targets, comparison.kind, comparison.outputs, folds,
                weights=weights, starts=comparison.starts,
            ).predicted  # fmt: skip
        found[len(rows)] = round(smaller.score(predicted), 4)
    return found


def describe_choice(
    comparison: Comparison, attempts: Sequence[Attempt], best: Attempt, curve: dict[int, float]
) -> list[str]:
    """Return lines of text that tell which strategy won, by how much, and what more labels would bring.

    `curve` is the result of `learning_curve`.
    """
    metric, own = comparison.material.primary_metric, comparison.score(best.predicted)
    others = [attempt for attempt in attempts if attempt is not best]
    lines = []
    if others:
        second = min(others, key=lambda attempt: attempt.loss)
        difference = comparison.losses(second.predicted) - comparison.losses(best.predicted)
        error = float(difference.std() / max(1, len(difference)) ** 0.5)
        other = f"{second.name} ({comparison.score(second.predicted):.3f})"
        if difference.mean() < 0:  # `choose_attempt` prefers the stronger strategy
            reason = f"kept because {other} is not clearly better, and gains less from being fitted to all examples"
        else:
            clear = "clearly" if difference.mean() > 2 * error else "not clearly"
            reason = f"{clear} better than {other}, by the loss in cross-validation"
        lines.append(f"best: {best.name} ({metric} {own:.3f}), {reason}")
    if len(curve) > 2:
        (_, half), (count, full) = list(curve.items())[-2:]
        gain = full - half
        worth = f"about {gain:+.3f} {metric}" if gain > 0.005 else "little"
        measured = "a bag of words" if best.share == 1 else "frozen features"
        lines.append(
            f"more labels: doubling them to {count} was worth {worth} for {measured}; expect less from the next doubling"
        )
    return lines
