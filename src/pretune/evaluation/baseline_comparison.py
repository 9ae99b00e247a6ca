"""The comparison with trivial baselines that ends every fine-tuning run.

A model that is not better than always giving the most frequent answer, or than counting words, should not be used;
its score alone does not show this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pretune.evaluation.baselines import cross_validated_baselines, trivial_baselines
from pretune.evaluation.confidence_intervals import bootstrap_intervals
from pretune.metrics import score
from pretune.runtime.atomic_io import write_json
from pretune.runtime.errors import if_option
from pretune.runtime.parsing import read_json_lines
from pretune.runtime.progress import log_info, progress
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, TaskData
from pretune.training.jobs.multitask import MultitaskData, answers_file
from pretune.training.run_folder import RESULTS, Run

FEW_ROWS = 500  # training examples below which more labels are the first advice
DIVERGED = 1.02  # times its first value; a training loss that ends higher has risen
LEARNED = 0.9  # of its first value; a training loss that ends above this share has hardly fallen
PERFECT = 1.0 - 1e-9
MODEL = "this model"


@dataclass(frozen=True)
class BaselineComparison:
    """Compares the answers of a fine-tuned model to the dev examples of a task with those of trivial baselines.

    `material` has the examples, `answers` the model's answers, `name` the task's name in a run with several tasks,
    `losses` the training losses in order, and `seeds` the summary of a run with several seeds.
    """

    material: TaskData
    answers: list[dict[str, Any]]
    name: str = ""  # of the task, where the run has several
    losses: tuple[float, ...] = ()  # of training, in order
    seeds: Mapping[str, Any] | None = None  # the summary of several seeds

    @property
    def metric(self) -> str:
        """Return the name of the metric by which model and baselines are compared."""
        return self.material.primary_metric

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the model and of each trivial baseline: learner → metric → value, the model first."""
        task, dev = self.material.task, self.material.dev
        rows, folds = self.material.rows, self.material.folds
        others = trivial_baselines(task, rows, dev) if folds is None else cross_validated_baselines(task, rows, folds)
        given = {MODEL: self.answers, **others}
        return {learner: score(task, answers, dev) for learner, answers in given.items()}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the 95 % confidence interval (low, high) of each metric of the model, by metric."""
        return bootstrap_intervals(self.material.task, self.answers, self.material.dev)

    @property
    def value(self) -> float:
        """Return the model's score by the primary metric."""
        return self.scores[MODEL][self.metric]

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval (low, high) of the model's score by the primary metric."""
        return self.intervals.get(self.metric, (self.value, self.value))

    @property
    def baselines(self) -> dict[str, float]:
        """Return the score of each trivial baseline by the primary metric, by the name of the baseline."""
        return {learner: metrics[self.metric] for learner, metrics in self.scores.items() if learner != MODEL}

    @property
    def best(self) -> tuple[str, float] | None:
        """Return the name and score of the best trivial baseline, or None if the task has no baseline.

        If several are equally good, it is the most trivial of them.
        """
        return max(reversed(self.baselines.items()), key=lambda item: item[1], default=None)

    @property
    def is_numeric(self) -> bool:
        """Return whether the predictions are numbers, tag sequences or clusters instead of classes or texts."""
        return any(key in self.answers[0] for key in ("value", "score", "similarity", "tags", "clusters"))

    def warning(self) -> str:
        """Return a warning with advice if the model is not clearly better than the best trivial baseline, else "".

        The model is clearly better if the confidence interval of its score lies above the baseline's score.
        """
        if self.best is None or self.value >= PERFECT or self.interval[0] > self.best[1]:
            return ""
        learner, other = self.best
        named = learner.replace("always ", "always answering ", 1) if learner.startswith("always ") else learner
        degree = "no better" if self.value <= other else "not clearly better"
        low, high = self.interval
        where = f"{self.name}: " if self.name else ""
        numbers = f"{self.metric} {self.value:.3g} [{low:.3g}, {high:.3g}] against {other:.3g}"
        return f"{where}the model is {degree} than {named} ({numbers}); try {self.advice()}"

    def advice(self) -> str:
        """Return advice on what is most likely to improve the model.

        It follows from the training losses, the predictions, and the number of examples.
        """
        change = self.losses[-1] / self.losses[0] if len(self.losses) > 2 and self.losses[0] else 0.0
        given = {str([answer.get(key) for key in ("label", "labels", "choice", "answer")]) for answer in self.answers}
        tips = []
        if not change <= DIVERGED:
            tips.append("a lower learning rate, because the training loss rose")
        elif change > LEARNED:
            tips.append("more epochs or a higher learning rate, because the training loss has hardly fallen")
        elif len(given) == 1 and len(self.answers) > 1 and not self.is_numeric:
            tips.append("more epochs, because the model gives every example the same answer")
        if len(self.material.rows) < FEW_ROWS:
            tips.append(f"more labels, because {len(self.material.rows):,} examples are few")
        if len(self.material.dev) < 2 * FEW_ROWS and self.best is not None and self.value > self.best[1]:
            size = f"because {len(self.material.dev):,} leave the interval wide"
            tips.append(f"more dev examples, {size}{if_option('dev', ' (--dev)')}")
        return ", or ".join(tips or ["a larger or better suited pretrained model, because this one has enough labels"])

    def lines(self) -> list[str]:
        """Return the closing lines of a fine-tuning run: the model's score, its interval, baselines, and a warning."""
        low, high = self.interval
        where = f"{self.name}: " if self.name else ""
        seeds = ""
        if self.seeds is not None:
            spread = self.seeds["/".join(filter(None, ("dev", self.name, self.metric)))]
            seeds = f"; mean of {self.seeds['count']} seeds {spread['mean']:.4g} ± {spread['sd']:.2g}"
        kind = "dev" if self.material.folds is None else "cross-validated"
        count = f"{len(self.material.dev):,} {kind} examples"
        lines = [f"{where}{self.metric} {self.value:.4g}, 95 % interval [{low:.4g}, {high:.4g}] on {count}{seeds}"]
        if self.baselines:
            others = ", ".join(f"{learner} {value:.4g}" for learner, value in self.baselines.items())
            lines.append(f"{where}trivial baselines: {others}")
        if warning := self.warning():
            lines.append(f"warning: {warning}")
        return lines

    def results(self) -> dict[str, Any]:
        """Return the entries that the comparison adds to the results of the run, by key.

        They are the 95 % confidence interval of the model's score, the scores of the trivial baselines, and the warning
        that the model is not clearly better, if it is not.
        """
        path = "/".join(filter(None, (self.name, self.metric)))
        found: dict[str, Any] = {f"interval/{path}": list(self.interval)}
        if self.best is not None:
            found |= {
                f"baseline/{path}": self.best[1],
                "/".join(filter(None, ("baselines", self.name))): self.baselines,
            }
        if warning := self.warning():
            found["/".join(filter(None, ("warning", self.name)))] = warning
        return found


def compare_run(run: Run, material: TaskData | MultitaskData) -> list[BaselineComparison]:
    """Compare the dev predictions of a run with trivial baselines, and add the outcome to the run's results.

    Return one comparison per task that has dev predictions.
    """
    tasks = {"": material} if isinstance(material, TaskData) else material.parts
    found, metrics = [], run.metrics()
    for name, one in tasks.items():
        path = run.folder / (answers_file(name) if name else DEV_PREDICTIONS)
        if one.dev is not None and len(one.dev) and path.is_file():
            losses = tuple(line[one.task.name] for line in metrics if one.task.name in line)
            answers = list(read_json_lines(path))
            found.append(BaselineComparison(one, answers, name, losses, run.results.get("seeds")))
    if found:
        with progress("baselines"):
            more = {key: value for comparison in found for key, value in comparison.results().items()}
        write_json(run.folder / RESULTS, {**run.results, **more})
    return found


def log_closing_lines(comparisons: list[BaselineComparison]) -> None:
    """Log the closing lines of a fine-tuning run: scores, baselines and warnings, or that nothing was evaluated."""
    for comparison in comparisons:
        for line in comparison.lines():
            log_info(line)
    if not comparisons:
        advice = if_option("dev", "; give dev examples with --dev, or 50 or more training examples")
        log_info(f"the model was not evaluated, because there are no dev examples{advice}")
