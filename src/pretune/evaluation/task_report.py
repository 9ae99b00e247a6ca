"""The HTML report of a fine-tuning run: scores, intervals, baselines, confusion matrix, calibration and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from pretune.evaluation.baseline_comparison import BaselineComparison
from pretune.evaluation.calibration_error import calibration
from pretune.evaluation.confidence_intervals import COVERAGE
from pretune.evaluation.learning_curve import FILE as CURVE
from pretune.metrics import positive_class, score
from pretune.metrics.per_example import ScoredAnswer
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.html_report import (
    ChartLine,
    paragraph,
    render_chart,
    render_page,
    render_table,
    section,
    wrap_table,
)
from pretune.runtime.parsing import read_json
from pretune.runtime.progress import progress
from pretune.training.jobs.finetuning import TaskData
from pretune.training.run_folder import Run

REPORT = "report.html"
WORST = 12  # examples shown
CLASSES = 20  # in a confusion matrix, at most


@dataclass
class TaskReport:
    """The contents of the HTML report on a fine-tuned task: scores, baselines, charts, and wrong answers."""

    run: Run
    comparison: BaselineComparison

    @property
    def material(self) -> TaskData:
        """Return the examples and the task of the report."""
        return self.comparison.material

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the answers of the model to the dev examples."""
        return self.comparison.answers

    @property
    def name(self) -> str:
        """Return the name of the task if the run has several tasks, else ""."""
        return self.comparison.name

    @property
    def classifies(self) -> bool:
        """Return whether the task is single-label classification, for which the report has a confusion matrix."""
        return self.material.task.single_label and all("label" in answer for answer in self.answers)

    @cached_property
    def judged(self) -> list[ScoredAnswer]:
        """Return every answer of the model with its gold answer and score."""
        return self.material.task.judge(self.answers, self.material.dev)

    def scores(self) -> list[dict[str, Any]]:
        """Return one row per metric: its value with a confidence interval, and the mean and deviation over seeds."""
        task, dev = self.material.task, self.material.dev
        sure, positive = self.comparison.intervals, positive_class(task)
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

    @property
    def baseline_scores(self) -> list[dict[str, Any]]:
        """Return the scores of the model and of the trivial baselines, one row each."""
        return [{"learner": name, **metrics} for name, metrics in self.comparison.scores.items()]

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
        """Return wrong answers, one row each: the lowest scores come first and, among equals, the highest confidence.

        At most `WORST` rows are returned.
        """
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
        if material.folds is not None:
            how = f"{len(material.rows):,} examples, each predicted by a model that was trained without it (cross-validation)"
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
        if tried := self.run.results.get("tried"):
            parts.append(self.strategies(tried))
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

    def strategies(self, tried: dict[str, dict[str, Any]]) -> str:
        """Return the comparison of strategies by cross-validation, with scores and costs, as an HTML section.

        `tried` maps each strategy to its results.
        """
        metric, chosen = self.material.primary_metric, self.run.results["strategy"]
        rows = [
            {
                "strategy": name,
                metric: f"{found[metric]:.4f} ± {found['sd']:.4f}",
                "loss": f"{found['loss']:.4f}",
                "seconds": f"{found['seconds']:.0f}",
            }
            for name, found in tried.items()
        ]
        told = f"Mean and standard deviation over the parts of the cross-validation. Kept: {chosen}."
        return section("Strategies", paragraph(told), render_table(rows, best=list(tried).index(chosen)))

    def learning_curve(self, points: list[dict[str, Any]]) -> str:
        """Return the learning curve as an HTML section with a table and a chart; `points` has one entry per size."""
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


def write_report(run: Run, comparisons: Sequence[BaselineComparison]) -> Path | None:
    """Write the HTML report of a run and return its path; None for a run without dev examples.

    `comparisons` has one comparison with trivial baselines per task.
    """
    if not comparisons:
        return None
    with progress("report"):
        sections = [part for comparison in comparisons for part in TaskReport(run, comparison).sections()]
        kinds = ", ".join(comparison.material.task.name for comparison in comparisons)
        content = render_page(f"{run.folder.name}: {kinds}", *sections)
    write_bytes(run.folder / REPORT, content.encode())
    return run.folder / REPORT
