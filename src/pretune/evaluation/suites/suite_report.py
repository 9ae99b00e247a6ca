"""The HTML report of an evaluation: scores next to published results, variation over seeds, weaknesses, and costs."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from pretune.evaluation.suites.averages import group_averages
from pretune.evaluation.suites.declaration import SuiteTask
from pretune.evaluation.suites.published_results import legend, published_results, results_table, sources
from pretune.evaluation.suites.suite_runner import Evaluation, mean_and_sd
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.html_report import command_block, paragraph, render_page, section, wrap_table
from pretune.runtime.html_report import render_table as page_table

REPORT = "report.html"
SHOWN = {
    0: "zero-shot: no examples in the prompt",
    1: "one-shot: one example in the prompt, of each class if there are classes",
}
MANY = "few-shot: {} examples in the prompt, of each class if there are classes"
BAR = "display:inline-block;height:.8rem;border-radius:3px;vertical-align:middle"


def scored(evaluation: Evaluation) -> dict[str, SuiteTask]:
    """Return the tasks of an evaluation that have scores; the other tasks have only answers for a submission."""
    return {name: evaluation.suite.tasks[name] for name, told in evaluation.tasks.items() if told["scores"]}


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return the rows of the results table: the evaluated model first, then published systems."""
    tasks = scored(evaluation)
    splits = {evaluation.tasks[name]["split"] for name in tasks}
    several = any(len(values) > 1 for name in tasks for values in evaluation.tasks[name]["scores"].values())
    scores = evaluation.scores if several else evaluation.means
    mine = {"system": evaluation.system, "split": "/".join(sorted(splits)), "scores": scores}
    return results_table(evaluation.suite, [mine], tasks)


def notes(evaluation: Evaluation) -> list[str]:
    """Return remarks on the scores of an evaluation: metrics, missing rows, failed seeds, and skipped tasks."""
    found = []
    tasks = scored(evaluation)
    if told := legend(tasks):
        found.append(f"Metrics: {told}; accuracy for the others.")
    if evaluation.shots is not None:
        found.append(f"In-context learning, {SHOWN.get(evaluation.shots, MANY.format(evaluation.shots))}.")
    for name, task in tasks.items():
        title, result = task.title, evaluation.tasks[name]
        for split, (there, whole) in result["incomplete"].items():
            found.append(
                f"{title}: {split} has {there:,} of {whole:,} rows; scores are not comparable with those on the whole split."
            )
        if result["failed"]:
            found.append(f"{title}: {result['failed']} of {result['seeds']} seeds failed and are excluded.")
    found += [f"{evaluation.suite.tasks[name].title}: skipped, {why}." for name, why in evaluation.missing.items()]
    return found


def costs(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return one row per task with its score and the time and memory of inference."""
    return [
        {
            "task": evaluation.suite.tasks[name].title,
            "score": mean_and_sd([sum(x) / len(x) for x in zip(*told["scores"].values(), strict=True)])[0],
            "parameters": f"{told['cost']['parameters']:,.0f}",
            "examples/s": f"{told['cost']['examples_per_second']:,.0f}",
            "peak memory": f"{told['cost']['peak_memory'] / 2**20:,.0f} MiB",
        }
        for name, told in evaluation.tasks.items()
        if told["scores"]
    ]


def seeds(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return one row per task and metric with the scores of all seeds."""
    made = []
    for name, told in evaluation.tasks.items():
        for metric, values in told["scores"].items():
            middle, wide = mean_and_sd(values)
            made.append(
                {
                    "task": evaluation.suite.tasks[name].title,
                    "metric": metric,
                    "split": told["split"],
                    "examples": told["examples"],
                    "mean": f"{middle:.4f}",
                    "sd": f"{wide:.4f}",
                    "each seed": ", ".join(f"{value:.4f}" for value in values),
                }
            )
    return made


def bars(evaluation: Evaluation) -> str:
    """Return an HTML table with one bar per task for the model's score, and marks for published results."""
    lines = []
    for name, task in scored(evaluation).items():
        told, metric = evaluation.tasks[name], task.metrics[0]
        value, wide = mean_and_sd(told["scores"][metric])
        marks = ""
        for reference in published_results(evaluation.suite):
            scores = reference.scores.get(name)
            number = scores.get(metric) if isinstance(scores, dict) else scores if len(task.metrics) == 1 else None
            if isinstance(number, int | float):
                at = 100 * number / evaluation.suite.scale
                told_by = escape(f"{reference.name} ({reference.split}): {number}", quote=True)
                marks += f'<span title="{told_by}" style="position:absolute;left:{at:.2f}%;width:2px;height:1.1rem;background:#d9822b"></span>'
        bar = f'<span style="{BAR};width:{max(0.0, 100 * value):.2f}%;background:#2f6fde"></span>'
        field = f'<div style="position:relative;background:#eef0f4;border-radius:3px;height:1.1rem">{bar}{marks}</div>'
        lines.append(
            f"<tr><th>{escape(task.title)}</th><td>{escape(metric)}</td><td class=number>{value:.3f} ± {wide:.3f}</td>"
            f'<td style="width:60%">{field}</td></tr>'
        )
    return wrap_table(lines)


def write_report(evaluation: Evaluation, out: Path) -> Path:
    """Write report.html for an evaluation to the folder `out`, and return its path."""
    suite = evaluation.suite
    tasks = scored(evaluation)
    parts = [
        section(
            f"{suite.title}, compared with published results",
            page_table(rows(evaluation), best=0),
            *map(paragraph, notes(evaluation)),
        ),
        section(
            "Scores and published results",
            bars(evaluation),
            paragraph("Marks are published results; hover over one to see its source."),
        ),
    ]
    groups = group_averages(suite, evaluation.means)
    if len(groups) > 1:
        told = [
            {"group": name, "mean": f"{a.value:.4f}", "tasks": f"{a.of - len(a.missing)} of {a.of}"}
            for name, a in groups.items()
        ]
        parts.append(section("By group of tasks", page_table(told)))
    parts += [
        section("By seed", page_table(seeds(evaluation))),
        section("Cost of inference", page_table(costs(evaluation))),
    ]
    for name, result in evaluation.tasks.items():
        if result.get("phenomena"):
            parts.append(section(f"{tasks[name].title} by phenomenon", page_table(result["phenomena"])))
    asked = [
        f"{task.title}\n\n{first}" for name, task in tasks.items() if (first := evaluation.tasks[name].get("prompt"))
    ]
    if asked:
        parts.append(section("First prompts", *map(command_block, asked)))
    cited = [f"{source}: {', '.join(names)}" for source, names in sources(suite, tasks).items()]
    parts.append(section("Sources", paragraph(f"{suite.title}: {suite.source}"), *map(paragraph, cited)))
    write_bytes(out / REPORT, render_page(f"{evaluation.system}: {suite.title}", *parts).encode())
    return out / REPORT
