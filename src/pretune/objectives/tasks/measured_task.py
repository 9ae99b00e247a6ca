"""A wrapper of tasks that adds custom metrics, or makes another metric the primary one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pretune.metrics.custom import LOWER_IS_BETTER, Metric, compute_metric, registered_metrics
from pretune.objectives.task import Answer, Task
from pretune.objectives.wrappers import WrappedTask
from pretune.runtime.errors import PretuneError, suggest


@dataclass(frozen=True)
class MeasuredTask(WrappedTask):
    """A wrapper that adds custom metrics to a task, any of which can be its primary metric.

    `metric` is the name of the primary metric ("" stands for the task's own), and `custom` has the custom metrics by
    name.
    """

    task: Task
    metric: str = ""  # the primary metric; "": that of the task
    custom: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def primary_metric(self) -> str:
        """Return the name of the metric by which models for this task are compared."""
        return self.metric or self.task.primary_metric

    def metric_sums(self, answers: Sequence[Answer], examples: Any) -> Any:
        """Return the wrapped task's metrics as sums over examples; None with custom metrics, which are not sums."""
        further = self.custom or self.metric in registered_metrics()
        return None if further else self.task.metric_sums(answers, examples)

    def metrics(self, answers: Sequence[Answer], examples: Any) -> dict[str, float]:
        """Return the metrics of the wrapped task and the custom metrics, by name."""
        own, custom = self.task.metrics(answers, examples), dict(self.custom)
        for name in own.keys() & custom.keys():
            raise PretuneError(f"The task {self.task.name} has a metric {name!r} already; rename the custom metric.")
        registered = registered_metrics()
        if self.metric in registered and self.metric not in own:
            custom.setdefault(self.metric, registered[self.metric])
        if not custom:
            return own
        gold, predicted = self.task.gold_and_predicted(answers, examples)
        return own | {name: compute_metric(name, metric, gold, predicted) for name, metric in custom.items()}


def measured_task(task: Task, metric: str | None, custom: Mapping[str, Metric]) -> Task:
    """Return `task` with the custom metrics `custom` and the primary metric `metric`, if either is given.

    `metric` can be a metric of the task, a custom metric, or a registered one.
    """
    if metric in LOWER_IS_BETTER:
        raise PretuneError(
            f"--metric {metric}: lower values are better for this metric, but models are chosen by the highest value; choose another metric"
        )
    return MeasuredTask(task, metric or "", custom) if metric or custom else task


def check_primary_metric(task: Task, metrics: Mapping[str, float]) -> None:
    """Raise an error if the primary metric of a task is missing from its computed `metrics`."""
    if task.primary_metric not in metrics:
        names = {*metrics, *registered_metrics()}
        raise PretuneError(
            f"--metric {task.primary_metric}: the task {task.name!r} has no such metric; {suggest(task.primary_metric, names)}"
        )
