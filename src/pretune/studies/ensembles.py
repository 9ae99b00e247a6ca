"""Measure what an ensemble gains: the models of an arm with different seeds, whose predictions are averaged.

The ensemble of all seeds is a single number, so its spread is estimated with the jackknife (Tukey, 1958): the gain is computed again
without each seed in turn, from the ensemble and the single models of the other seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from pretune.inference.ensemble import combine_predictions
from pretune.metrics import score
from pretune.runtime.parsing import read_json
from pretune.studies.arm_jobs import EvaluationRun, finetuning_job
from pretune.studies.comparisons import Comparison
from pretune.studies.study_file import Arm, Evaluation
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, read_task_data

ENSEMBLES = "ensembles.json"
LEAST_MEMBERS = 3  # so that an ensemble is left without each of them
Gains = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by evaluation and arm


@dataclass(frozen=True)
class EnsembleComparison(Comparison):
    """The comparison of an ensemble of an arm (compared recipe) with its single models.

    `first_scores` repeats the score of the ensemble of all seeds, and `second_scores` has those of the single models.
    """

    without: tuple[float, ...] = ()  # the score of the ensemble without each of the seeds
    unscored: ClassVar[str] = "were not scored, which takes three seeds"

    @cached_property
    def standard_error(self) -> float:
        """The jackknife estimate of the standard error of the gain; NaN with fewer than three seeds."""
        single, count = self.second_scores, self.seeds
        if count < LEAST_MEMBERS:
            return math.nan
        gains = [
            score - mean(single[:left_out] + single[left_out + 1 :]) for left_out, score in enumerate(self.without)
        ]
        return math.sqrt((count - 1) / count * sum((gain - mean(gains)) ** 2 for gain in gains))

    @property
    def degrees_of_freedom(self) -> float:
        """The degrees of freedom of the t-test: one less than seeds."""
        return float(self.seeds - 1)


def score_ensemble(arm: Arm, evaluation: Evaluation, folders: Sequence[Path]) -> dict[str, Any] | None:
    """Return the scores of an arm's models, of their ensemble, and of the ensembles without each of them.

    `folders` are those of the arm's runs with different seeds. The result is None if fewer than three of them have
    predictions.
    """
    found = [folder / evaluation.name for folder in folders if (folder / evaluation.name / DEV_PREDICTIONS).is_file()]
    if len(found) < LEAST_MEMBERS:
        return None
    material = read_task_data(finetuning_job(EvaluationRun(arm, evaluation, str(found[0]), 0, found[0])))
    members = [read_predictions(folder / DEV_PREDICTIONS) for folder in found]

    def value(chosen: Sequence[Any]) -> float:
        return score(material.task, combine_predictions(material.task, chosen, material.dev), material.dev)[metric]

    metric = material.primary_metric
    return {
        "metric": metric,
        "single": [value([member]) for member in members],
        "ensemble": value(members),
        "without": [value(members[:left_out] + members[left_out + 1 :]) for left_out in range(len(members))],
    }


def read_predictions(file: Path) -> list[Any]:
    """Return the predictions of a fine-tuned model for its dev examples."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_ensembles(out: Path) -> Gains:
    """Return the scores of ensembles in the folder of a study, by evaluation and arm; empty if none were measured."""
    path = out / ENSEMBLES
    return dict(read_json(path)) if path.is_file() else {}
