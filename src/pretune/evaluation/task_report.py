"""The HTML report of a fine-tuning run: scores, intervals, baselines, confusion matrix, calibration and errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from pretune.evaluation.baselines import trivial_baselines
from pretune.evaluation.calibration_error import calibration
from pretune.evaluation.confidence_intervals import COVERAGE, bootstrap_intervals
from pretune.evaluation.learning_curve import FILE as CURVE
from pretune.metrics import positive_class, score
from pretune.metrics.per_example import ScoredAnswer
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.html_report import (
    ChartLine,
    paragraph,
    render_chart,
    render_page,
    render_table,
    section,
    wrap_table,
)
from pretune.runtime.parsing import read_json, read_json_lines
from pretune.runtime.progress import log_info, progress
from pretune.training.jobs.finetuning import DEV_PREDICTIONS, TaskData
from pretune.training.jobs.multitask import MultitaskData, answers_file
from pretune.training.run_folder import RESULTS, Run

REPORT = "report.html"
WORST = 12  # examples shown
CLASSES = 20  # in a confusion matrix, at most


@dataclass
class TaskReport:
    """The contents of the HTML report on a fine-tuned task: scores, baselines, charts, and wrong answers."""

    run: Run
    material: TaskData
    answers: list[dict[str, Any]]
    name: str = ""  # of the task, where the run has several

    @property
    def classifies(self) -> bool:
        """Return whether the task is single-label classification, for which the report has a confusion matrix."""
        return self.material.task.single_label and all("label" in answer for answer in self.answers)

    @cached_property
    def judged(self) -> list[ScoredAnswer]:
        """Return every answer of the model with its gold answer and score."""
        return self.material.task.judge(self.answers, self.material.dev)

    def scores(self) -> list[dict[str, Any]]:
        """Return one row per metric with its confidence interval, and its mean and standard deviation over seeds."""
        task, dev = self.material.task, self.material.dev
        sure, positive = bootstrap_intervals(task, self.answers, dev), positive_class(task)
        seeds = self.run.results.get("seeds", {})
        rows = []
        for name, value in score(task, self.answers, dev).items():
            low, high = sure.get(name, (value, value))
            title = f"{name} (of {positive!r})" if name == "f1" and positive is not None else name
            row = {"metric": title, "this model": f"{value:.4f}", f"{COVERAGE:.0%} interval": f"{low:.4f} – {high:.4f}"}
            if seeds:
                spread = seeds["/".join(filter(None, ("dev", self.name, name)))]
                row[f"{seeds['count']} seeds"] = f"{spread['mean']:.4f} ± {spread['sd']:.4f}"
            rows.append(row)
        return rows

    @cached_property
    def baseline_scores(self) -> list[dict[str, Any]]:
        """Return the scores of the model and of the trivial baselines, one row each."""
        task, rows, dev = self.material.task, self.material.rows, self.material.dev
        given = {"this model": self.answers, **trivial_baselines(task, rows, dev)}
        return [{"learner": name, **score(task, answers, dev)} for name, answers in given.items()]

    def compare_with_baseline(self) -> dict[str, float]:
        """Return the best score of a trivial baseline as a result of the run; log if the model is not better than it."""
        metric = self.material.primary_metric
        own, *others = self.baseline_scores
        if not others:
            return {}
        best = max(others, key=lambda row: row[metric])
        if own[metric] <= best[metric] and own[metric] < 1:
            where = f"{self.name}: " if self.name else ""
            log_info(
                f"{where}the model is not better than {best['learner']} ({own[metric]:.4g} and {best[metric]:.4g} {metric}); "
                "try more epochs or a higher learning rate"
            )
        return {"/".join(filter(None, ("baseline", self.name, metric))): best[metric]}

    def confusion(self) -> str:
        """Return the confusion matrix as an HTML table, with the true classes in rows."""
        labels, dev = list(self.material.task.labels), self.material.dev  # type: ignore[attr-defined]
        counts = {(right, given): 0 for right in labels for given in labels}
        for right, answer in zip(dev.labels, self.answers, strict=True):
            counts[right, answer["label"]] += 1
        totals = {right: max(1, sum(counts[right, given] for given in labels)) for right in labels}
        head = "".join(f"<th class=number>{escape(label)}</th>" for label in labels)
        lines = [f"<tr><th>true ↓ predicted →</th>{head}</tr>"]
        for right in labels:
            cells = []
            for given in labels:
                share = counts[right, given] / totals[right]
                color = f"47,111,222,{0.75 * share:.2f}" if given == right else f"217,66,43,{0.75 * share:.2f}"
                cells.append(f'<td class=number style="background:rgba({color})">{counts[right, given]}</td>')
            lines.append(f"<tr><th>{escape(right)}</th>{''.join(cells)}</tr>")
        return wrap_table(lines)

    def calibration_chart(self) -> str:
        """Return the reliability diagram and the calibration error as HTML."""
        sure = [(scored.probability, scored.score >= 1) for scored in self.judged if scored.probability is not None]
        error, bins = calibration([sure for sure, _ in sure], [right for _, right in sure])
        lines = [
            ChartLine("this model", [(bin.sure, bin.right) for bin in bins]),
            ChartLine("perfect calibration", [(0.0, 0.0), (1.0, 1.0)], faint=True),
        ]
        text = f"Expected calibration error {error:.3f}: the mean difference between confidence and accuracy."
        return paragraph(text) + render_chart(lines, x_label="confidence", y_label="accuracy")

    def worst_answers(self) -> list[dict[str, Any]]:
        """Return one row per wrong answer, those with the lowest score and the highest confidence first."""
        dev = self.material.dev
        wrong = sorted((x for x in self.judged if x.score < 1), key=lambda x: (x.score, -(x.probability or 0.0)))
        rows = []
        for one in wrong[:WORST]:
            sure = "" if one.probability is None else f" ({one.probability:.2f})"
            shown = {**dev.inputs(one.row), "right": one.expected, "answer": f"{one.answer}{sure}"}
            rows.append({name: short(str(value)) for name, value in shown.items()})
            rows[-1]["place"] = dev.location(one.row).removeprefix(f"{dev.file}, ")
        return rows

    def loss_chart(self) -> str:
        """Return a chart of the training loss as SVG; "" if there is only one value."""
        name = self.material.task.name
        points = [(line["step"], line[name]) for line in self.run.metrics() if name in line]
        return (
            render_chart([ChartLine("training loss", points)], x_label="steps", y_label="loss")
            if len(points) > 1
            else ""
        )

    def sections(self) -> list[str]:
        """Return all sections of the report as HTML."""
        task, seeds, material = self.material.task, self.run.results.get("seeds", {}), self.material
        how = f"{len(material.rows):,} training examples, {len(material.dev):,} dev examples"
        told = [how + f"; {self.run.results['model']}, {self.run.results['objective']}."]
        if material.dev_rows:
            told.append("The dev examples were held out from the training file; scores on other data may be lower.")
        if seeds:
            told.append(
                f"{seeds['count']} seeds, {seeds['failed']} of them failed; this is seed {seeds['best']}, the best on these dev "
                "examples, so its score is optimistic: expect the mean."
            )
        title = f"{self.name}: scores" if self.name else "Scores"
        parts = [section(title, *map(paragraph, told), render_table(self.scores()))]
        if len(beside := self.baseline_scores) > 1:
            parts.append(section("Trivial baselines", render_table(beside, best=None)))
        if self.classifies and len(task.labels) <= CLASSES:  # type: ignore[attr-defined]
            parts.append(section("Confusion matrix", self.confusion()))
        if all(scored.probability is not None for scored in self.judged):
            parts.append(section("Calibration", self.calibration_chart()))
        if worst := self.worst_answers():
            parts.append(section("Worst answers", render_table(worst)))
        parts.append(section("Training", self.loss_chart()))
        if (points := self.run.folder / CURVE).is_file() and not self.name:
            parts.append(self.learning_curve(read_json(points)))
        return parts

    def learning_curve(self, points: list[dict[str, Any]]) -> str:
        """Return the learning curve as an HTML section with a table and a chart."""
        learners = [name for name in points[0] if name != "examples"]
        lines = []
        for name in learners:
            lines += [ChartLine(name, [(point["examples"], point[name]["mean"]) for point in points])]
            many = min(len(point[name]["scores"]) for point in points)
            if many > 1:
                each = ([(point["examples"], point[name]["scores"][i]) for point in points] for i in range(many))
                lines += [ChartLine(name, one, faint=True) for one in each]
        rows = [
            {"examples": f"{point['examples']:,}"}
            | {name: f"{point[name]['mean']:.4f} ± {point[name]['sd']:.4f}" for name in learners}
            for point in points
        ]
        drawn = render_chart(lines, x_label="examples", y_label=self.material.primary_metric) if len(points) > 1 else ""
        return section("Learning curve", render_table(rows), drawn)


def short(text: str) -> str:
    """Return a text, shortened to fit into a table cell."""
    return text if len(text) < 300 else text[:297] + "…"


def write_report(run: Run, material: TaskData | MultitaskData) -> Path | None:
    """Write the HTML report of a run that has a dev set and return its path; None without a dev set.

    The best score of a trivial baseline becomes a result of the run, `baseline/METRIC`.
    """
    tasks = {"": material} if isinstance(material, TaskData) else material.parts
    reports = []
    for name, one in tasks.items():
        path = run.folder / (answers_file(name) if name else DEV_PREDICTIONS)
        if one.dev is not None and path.is_file():
            answers = list(read_json_lines(path))
            reports.append(TaskReport(run, one, answers, name))
    if not reports:
        return None
    with progress("report"):
        sections = [part for report in reports for part in report.sections()]
        content = render_page(f"{run.folder.name}: {', '.join(one.task.name for one in tasks.values())}", *sections)
        baselines = {name: value for report in reports for name, value in report.compare_with_baseline().items()}
    write_bytes(run.folder / REPORT, content.encode())
    write_json(run.folder / RESULTS, {**run.results, **baselines})
    return run.folder / REPORT
