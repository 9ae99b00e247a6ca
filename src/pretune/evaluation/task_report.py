"""The report of a fine-tuning: how good, how sure, beside what, and where it goes wrong; one page, report.html."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from pretune.evaluation.baselines import controls
from pretune.evaluation.bootstrap import COVERAGE, intervals
from pretune.evaluation.calibration import calibration
from pretune.evaluation.learning_curve import FILE as CURVE
from pretune.metrics import positive_class, score
from pretune.metrics.per_example import Judged
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.html_report import Line, chart, page, paragraph, section, table, table_of
from pretune.runtime.parsing import read_json, read_json_lines
from pretune.runtime.progress import progress
from pretune.training.jobs.finetuning import ANSWERS, Material
from pretune.training.jobs.multitask import Tasks, answers_file
from pretune.training.run_folder import Run

REPORT = "report.html"
WORST = 12  # examples shown
CLASSES = 20  # in a confusion matrix, at most


@dataclass
class TaskReport:
    """Everything the page shows."""

    run: Run
    material: Material
    answers: list[dict[str, Any]]
    name: str = ""  # of the task, where the run has several

    @property
    def classifies(self) -> bool:
        """Whether there are classes that can be confused."""
        kinds = ("classify", "match", "prompt")
        return self.material.task.kind in kinds and all("label" in answer for answer in self.answers)

    @cached_property
    def judged(self) -> list[Judged]:
        """Every answer beside the right one."""
        return self.material.task.judge(self.answers, self.material.dev)

    def scores(self) -> list[dict[str, Any]]:
        """Each metric, its interval, and mean and spread over seeds."""
        task, dev = self.material.task, self.material.dev
        sure, positive = intervals(task, self.answers, dev), positive_class(task)
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

    def controls(self) -> list[dict[str, Any]]:
        """The model beside what costs nothing."""
        task, rows, dev = self.material.task, self.material.rows, self.material.dev
        given = {"this model": self.answers, **controls(task, rows, dev)}
        return [{"learner": name, **score(task, answers, dev)} for name, answers in given.items()]

    def confusion(self) -> str:
        """A row for each right class, a column for each answer, darker where there are more."""
        labels, dev = list(self.material.task.labels), self.material.dev  # type: ignore[attr-defined]
        counts = {(right, given): 0 for right in labels for given in labels}
        for right, answer in zip(dev.labels, self.answers, strict=True):
            counts[right, answer["label"]] += 1
        totals = {right: max(1, sum(counts[right, given] for given in labels)) for right in labels}
        head = "".join(f"<th class=number>{escape(label)}</th>" for label in labels)
        lines = [f"<tr><th>right ↓ answer →</th>{head}</tr>"]
        for right in labels:
            cells = []
            for given in labels:
                share = counts[right, given] / totals[right]
                color = f"47,111,222,{0.75 * share:.2f}" if given == right else f"217,66,43,{0.75 * share:.2f}"
                cells.append(f'<td class=number style="background:rgba({color})">{counts[right, given]}</td>')
            lines.append(f"<tr><th>{escape(right)}</th>{''.join(cells)}</tr>")
        return table_of(lines)

    def sureness(self) -> str:
        """How often answers of each probability are right."""
        sure = [(judged.sure, judged.good >= 1) for judged in self.judged if judged.sure is not None]
        error, bins = calibration([sure for sure, _ in sure], [right for _, right in sure])
        lines = [
            Line("this model", [(bin.sure, bin.right) for bin in bins]),
            Line("as sure as right", [(0.0, 0.0), (1.0, 1.0)], faint=True),
        ]
        text = f"Expected calibration error {error:.3f}: how far the probability of an answer is from how often it is right."
        return paragraph(text) + chart(lines, across="probability of the answer", up="share that is right")

    def worst(self) -> list[dict[str, Any]]:
        """The worst answers; of equally bad ones those that it was most sure of."""
        dev = self.material.dev
        wrong = sorted((x for x in self.judged if x.good < 1), key=lambda x: (x.good, -(x.sure or 0.0)))
        rows = []
        for one in wrong[:WORST]:
            sure = "" if one.sure is None else f" ({one.sure:.2f})"
            shown = {**dev.show(one.row), "right": one.right, "answer": f"{one.answer}{sure}"}
            rows.append({name: short(str(value)) for name, value in shown.items()})
            rows[-1]["place"] = dev.place(one.row).removeprefix(f"{dev.file}, ")
        return rows

    def curve(self) -> str:
        """The loss while it learned."""
        name = self.material.task.name
        points = [(line["step"], line[name]) for line in self.run.metrics() if name in line]
        return chart([Line("training loss", points)], across="steps", up="loss") if len(points) > 1 else ""

    def sections(self) -> list[str]:
        """All that there is to say."""
        task, seeds, material = self.material.task, self.run.results.get("seeds", {}), self.material
        how = f"{len(material.rows):,} examples to learn from, {len(material.dev):,} to judge by"
        told = [how + f"; {self.run.results['model']}, {self.run.results['objective']}."]
        if material.taken:
            told.append("Those to judge by were set aside from the same file; scores on other data may be lower.")
        if seeds:
            told.append(
                f"{seeds['count']} seeds, {seeds['failed']} of them learned nothing; this is seed {seeds['best']}, the best on "
                "these same examples, which flatters it: what to expect is the mean."
            )
        title = f"{self.name}: how good" if self.name else "How good"
        parts = [section(title, *map(paragraph, told), table(self.scores()))]
        if len(beside := self.controls()) > 1:
            parts.append(section("Beside what costs nothing", table(beside, best=None)))
        if self.classifies and len(task.labels) <= CLASSES:  # type: ignore[attr-defined]
            parts.append(section("What is taken for what", self.confusion()))
        if all(judged.sure is not None for judged in self.judged):
            parts.append(section("Is it as sure as it is right?", self.sureness()))
        if worst := self.worst():
            parts.append(section("The worst answers", table(worst)))
        parts.append(section("How it learned", self.curve()))
        if (points := self.run.folder / CURVE).is_file() and not self.name:
            parts.append(self.by_labels(read_json(points)))
        return parts

    def by_labels(self, points: list[dict[str, Any]]) -> str:
        """How good with fewer examples."""
        learners = [name for name in points[0] if name != "examples"]
        lines = []
        for name in learners:
            lines += [Line(name, [(point["examples"], point[name]["mean"]) for point in points])]
            many = min(len(point[name]["each"]) for point in points)
            if many > 1:
                each = ([(point["examples"], point[name]["each"][i]) for point in points] for i in range(many))
                lines += [Line(name, one, faint=True) for one in each]
        rows = [
            {"examples": f"{point['examples']:,}"}
            | {name: f"{point[name]['mean']:.4f} ± {point[name]['sd']:.4f}" for name in learners}
            for point in points
        ]
        drawn = chart(lines, across="examples", up=self.material.decides) if len(points) > 1 else ""
        return section("With fewer examples", table(rows), drawn)


def short(text: str) -> str:
    """What fits into a table."""
    return text if len(text) < 300 else text[:297] + "…"


def write_report(run: Run, material: Material | Tasks) -> Path | None:
    """Write a run's report, where there is something to judge by."""
    tasks = {"": material} if isinstance(material, Material) else material.parts
    reports = []
    for name, one in tasks.items():
        path = run.folder / (answers_file(name) if name else ANSWERS)
        if one.dev is not None and path.is_file():
            answers = list(read_json_lines(path))
            reports.append(TaskReport(run, one, answers, name))
    if not reports:
        return None
    with progress("report"):
        sections = [part for report in reports for part in report.sections()]
        content = page(f"{run.folder.name}: {', '.join(one.task.name for one in tasks.values())}", *sections)
    write_bytes(run.folder / REPORT, content.encode())
    return run.folder / REPORT
