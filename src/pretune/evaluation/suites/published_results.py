"""Results tables of a suite, with published results and their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pretune.evaluation.suites import find_suite_file
from pretune.evaluation.suites.averages import averages
from pretune.evaluation.suites.declaration import Suite, SuiteTask

SHORT = {
    "nf1": "nF1", "cf1": "cF1", "ds_em": "dsEM", "lf_em": "lfEM", "mean_rouge": "rouge", "bleu_lowercase": "bleu", "exact_match": "em",
    "accuracy": "acc", "matthews": "mcc", "spearman": "ρ", "pearson": "r", "macro_f1": "f1", "exact_questions": "em",
    "gap_f1": "f1", "gap_exact": "em", "answer_f1": "f1", "answer_exact": "em", "entity_f1": "f1", "role_f1": "f1", "conll_f1": "f1", "muc_f1": "MUC", "b_cubed_f1": "B³", "ceaf_f1": "CEAF", "word_accuracy": "acc",
}  # fmt: skip


@dataclass(frozen=True)
class PublishedResult:
    """The published scores of one system on a suite, by task: one number, or several numbers by metric."""

    name: str
    split: str
    source: str
    scores: Mapping[str, float | Mapping[str, float]]
    averages: Mapping[str, float] = field(default_factory=dict)


def published_results(suite: Suite) -> list[PublishedResult]:
    """Return the published results of a suite, one per system; [] if there are none.

    >>> from pretune.evaluation.suites.declaration import find_suite
    >>> published_results(find_suite("glue"))[3].name
    'BERT-base'
    """
    import yaml

    file = find_suite_file(suite.name)
    if file is None or not (path := file.parent / "references" / file.name).is_file():
        return []
    return [PublishedResult(**row) for row in yaml.safe_load(path.read_text(encoding="utf-8"))]


def results_table(
    suite: Suite, rows: Sequence[Mapping[str, Any]], tasks: Mapping[str, SuiteTask]
) -> list[dict[str, str]]:
    """Return the results table of a suite: one row per evaluated system in `rows`, then one per published system.

    Each of `rows` has the keys `system`, `split` and `scores`: task → metric → mean, or (mean, standard deviation).
    `tasks` are the columns of the table.
    """
    made = []
    for row in rows:
        cells = {task.title: cell(suite, task, row["scores"].get(name)) for name, task in tasks.items()}
        plain = {name: {m: _mean(v) for m, v in found.items()} for name, found in row["scores"].items()}
        found = averages(suite, plain)
        means = {name: found[name] for name in (*suite.averages, *suite.sums) if name in found}
        told = {name: f"{_number(suite, value.value)}{value.label}" for name, value in means.items()}
        made.append({"system": row["system"], "split": row["split"], **cells, **told})
    for reference in published_results(suite):
        cells = {
            task.title: cell(suite, task, reference.scores.get(name), printed=True) for name, task in tasks.items()
        }
        if any(value != "-" for value in cells.values()):
            told = {name: _print(suite, value) for name, value in reference.averages.items()}
            made.append({"system": reference.name, "split": reference.split, **cells, **told})
    names = list(dict.fromkeys(name for row in made for name in row))
    return [{name.replace("_", " "): row.get(name, "-") for name in names} for row in made]


def legend(tasks: Mapping[str, SuiteTask]) -> str:
    """Return a text that names the metrics in the results table, for tasks that are not scored by accuracy alone.

    >>> from pretune.evaluation.suites.declaration import find_suite
    >>> legend({"mrpc": find_suite("glue").tasks["mrpc"]})
    'MRPC f1/acc'
    """
    return ", ".join(
        f"{task.title} {'/'.join(SHORT.get(metric, metric) for metric in task.metrics)}"
        for task in tasks.values()
        if list(task.metrics) != ["accuracy"]
    )


def sources(suite: Suite, tasks: Mapping[str, SuiteTask]) -> dict[str, list[str]]:
    """Return the sources (citations) of published results on any of the tasks, each with the names of its systems."""
    found: dict[str, list[str]] = {}
    for reference in published_results(suite):
        if set(tasks) & set(reference.scores):
            found.setdefault(reference.source, []).append(reference.name)
    return found


def cell(suite: Suite, task: SuiteTask, scores: Any, *, printed: bool = False) -> str:
    """Return a task's scores as the text of a table cell, "-" if there are none.

    Published scores (`printed`) are already in the scale of the suite; other scores are numbers from 0 to 1.
    """
    if scores is None:
        return "-"
    show = _print if printed else _number
    if isinstance(scores, int | float):
        return show(suite, scores)
    if not any(metric in scores for metric in task.metrics):
        return "-"
    return "/".join(show(suite, scores[metric]) if metric in scores else "-" for metric in task.metrics)


def _mean(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple | list) else value)


def _number(suite: Suite, value: Any) -> str:
    """Return a score from 0 to 1, or (mean, standard deviation), as text in the scale of the suite, such as percent."""
    if isinstance(value, tuple | list):
        return f"{_number(suite, value[0])}±{_number(suite, value[1])}"
    return f"{100 * value:.1f}" if suite.scale == 100 else f"{value:.3f}"


def _print(suite: Suite, value: float) -> str:
    """Return a published score, which is already in the scale of the suite, as text."""
    return f"{value:.1f}" if suite.scale == 100 else f"{value:.3f}"
