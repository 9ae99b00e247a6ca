"""Hold what strategies are compared on and what each one scored: candidates, attempts, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pretune.metrics import score
from pretune.runtime.arrays import Array
from pretune.text.examples.labeled import LabeledRows
from pretune.training.jobs.bag_of_words import ChosenBag
from pretune.training.jobs.finetuning import (
    FinetuningJob,
    TaskData,
    find_task,
    requested_objectives,
    with_model_pooling,
)
from pretune.training.jobs.linear_models import TEMPERATURES, Kind, losses
from pretune.training.jobs.strategies.calibration import Calibration, has_clear_majority

FEWEST_ROWS = 8
# Parts of the rows, each of which is predicted after training on the others.
FOLDS = {"quick": 5, "normal": 3, "thorough": 5}


@dataclass(frozen=True)
class Candidate:
    """A way to solve a task that is to be tried: an objective, a fine-tuning strategy, and a learning rate factor."""

    name: str  # for people
    objective: str
    strategy: str
    lr_factor: float = 1.0


@dataclass
class Attempt:
    """A candidate strategy with its scores and its cross-validated predictions, (rows, classes) or numbers (rows,)."""

    candidate: Candidate
    predicted: Array
    seconds: float
    calibration: Calibration = field(default_factory=lambda: Calibration())
    share: float = 0.0  # of the bag of words in the average; its own calibration is that of its attempt
    loss: float = 0.0
    scores: list[float] = field(default_factory=list)  # by fold

    @property
    def name(self) -> str:
        """The name of the candidate, followed by "+ a bag of words" if their predictions are averaged."""
        if self.share == 1:
            return "a bag of words"
        return f"{self.candidate.name} + a bag of words" if self.share else self.candidate.name


@dataclass
class Comparison:
    """The data on which strategies are compared by cross-validation: examples, folds, targets, and the bag of words."""

    plan: FinetuningJob
    material: TaskData
    folds: Array  # (rows,) numbers of parts of the rows, each of which is predicted after training on the others
    targets: Array
    kind: Kind
    outputs: int
    weights: Array | None
    bag: ChosenBag | None = None
    words: Attempt | None = None  # with the bag of words alone
    vectors: Array | None = None  # frozen features, (rows, width)
    starts: Sequence[int] = (0,)  # columns from which linear models of these features read
    depth: int = 1  # layers of the model
    concatenates: bool = True  # whether several layers can be read together
    failed: list[str] = field(default_factory=list)  # names of candidates whose training diverged

    @property
    def frequencies(self) -> Array:
        """The fraction of rows that have each class or label, (classes,); an empty array for regression."""
        if self.kind == "classes":
            return np.asarray(np.bincount(self.targets, minlength=self.outputs) / len(self.targets))
        return np.asarray(self.targets.mean(0)) if self.kind == "labels" else np.empty(0)

    @property
    def rows(self) -> LabeledRows:
        """The labeled rows on which strategies are compared."""
        rows: LabeledRows = self.material.rows
        return rows

    def answers(self, predicted: Array) -> list[dict[str, Any]]:
        """Convert predictions, (rows, classes) or numbers (rows,), to the task's format, one dictionary per row."""
        task = self.material.task.unwrapped
        if self.kind != "number":
            return [task.answer_from(row) for row in predicted]
        return [{"value": float(value) * task.deviation + task.mean} for value in predicted]

    def score(self, predicted: Array, rows: Sequence[int] | Array | None = None) -> float:
        """Return the primary metric of predictions for all rows, or only for the rows with the given indices."""
        chosen = list(range(len(self.rows))) if rows is None else [int(row) for row in rows]
        answers = self.answers(predicted[chosen])
        found = score(self.material.task, answers, self.rows.take(chosen))[self.material.primary_metric]
        return 0.0 if np.isnan(found) else float(found)

    def losses(self, predicted: Array) -> Array:
        """Return the loss of each row, (rows,), given predictions for all rows."""
        return losses(predicted, self.targets, self.kind)


def clearly_lower(some: Array, others: Array, errors: float = 1.0) -> bool:
    """Return whether losses of rows, (rows,), are lower than other losses of these rows by more than some standard errors.

    >>> clearly_lower(np.array([0.1, 0.2, 0.1]), np.array([0.5, 0.7, 0.6])), clearly_lower(np.zeros(2), np.zeros(2))
    (True, False)
    """
    difference = others - some
    return bool(difference.mean() > errors * difference.std() / len(difference) ** 0.5)


def calibrate(comparison: Comparison, predicted: Array) -> Calibration:
    """Return the temperature that minimizes the mean loss of predictions for all rows.

    If one class is clearly the most frequent, predictions are also pulled toward the class frequencies, unless this is clearly worse.
    Without a clear majority, they never are: for a model that hardly learns, always answering the most frequent class has the
    lowest loss in cross-validation, even if this class is the most frequent one by accident.
    """
    if comparison.kind == "number":
        return Calibration()
    frequencies, kind = comparison.frequencies, comparison.kind

    def row_losses(calibration: Calibration) -> Array:
        return comparison.losses(calibration.apply(predicted, frequencies, kind))

    def best(pull: float) -> Calibration:
        return min((Calibration(1 / t, pull) for t in TEMPERATURES), key=lambda one: row_losses(one).mean())

    plain = best(pull=0.0)
    if kind != "classes" or comparison.weights is not None or not has_clear_majority(comparison.targets):
        return plain
    pulled = best(pull=1.0)
    return plain if clearly_lower(row_losses(plain), row_losses(pulled)) else pulled


def calibrated_loss(comparison: Comparison, predicted: Array, rows: Array) -> float:
    """Return the mean loss of the predictions for the rows with indices `rows`, after calibration on these rows."""
    part = replace(comparison, targets=comparison.targets[rows])
    found = calibrate(part, predicted[rows])
    return float(part.losses(found.apply(predicted[rows], comparison.frequencies, comparison.kind)).mean())


def candidate_data(
    comparison: Comparison, candidate: Candidate, rows: LabeledRows, held_out: LabeledRows | None = None
) -> TaskData:
    """Return the data to train a candidate on `rows` and to predict `held_out`.

    The task of the result knows the labels of all rows of the comparison.
    """
    plan = replace(comparison.plan, objective=candidate.objective)
    mixture = requested_objectives(plan, plan.objective)
    unfitted = find_task(mixture)
    task = with_model_pooling(plan, plan.objective, unfitted).fit(comparison.rows)
    return TaskData(mixture.with_part(task), unfitted, task, rows, held_out, dev_rows=[])
