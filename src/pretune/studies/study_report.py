"""Write the results of a study: results.csv, results.json, summary.md, and the self-contained page report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.html_report import paragraph, render_page, render_table, section
from pretune.studies.results import StudyResults, join
from pretune.studies.study_figures import curve_terms, draw_all_scores, draw_budgets, draw_curves, draw_pareto
from pretune.studies.study_file import Arm, format_amount
from pretune.studies.verdict import mean_and_spread, notes, sentence
from pretune.text.corpus.table_writer import table_writer
from pretune.training.run_folder import environment

REPORT, SUMMARY, TABLE, FULL = "report.html", "summary.md", "results.csv", "results.json"


def write_study_report(results: StudyResults, out: Path) -> Path:
    """Write the tables, the summary, and the report of a study to its folder, and return the path of the report."""
    where = environment()
    with table_writer(out / TABLE, safe=True) as write:
        write(results.rows())
    write_json(out / FULL, {**describe_results(results), "environment": where})
    write_bytes(out / SUMMARY, render_summary(results, where).encode())
    write_bytes(out / REPORT, render_report(results, where).encode())
    return out / REPORT


def describe_results(results: StudyResults) -> dict[str, Any]:
    """Return the results of a study as a JSON-compatible dictionary."""
    comparisons = [
        {
            "first": one.first, "second": one.second, "metric": one.metric, "budget": budget, "difference": one.difference,
            "half_width": one.half_width, "confidence": one.confidence, "p": one.p, "seeds": one.seeds, "conclusion": one.conclusion,
        }
        for budget in results.study.budgets for metric in results.metrics for one in results.comparisons(metric, budget)
    ]  # fmt: skip
    return {
        "question": results.study.question,
        "headline": results.headline(),
        "verdict": results.verdict,
        "expectations": [{"expectation": str(one.expectation), "verdict": one.verdict} for one in results.judged],
        "unit": results.study.unit,
        "budgets": list(results.study.budgets),
        "seeds": results.study.seeds,
        "comparisons": without_nan(comparisons),
        "latency": results.latency,
        "ensembles": results.ensembles,
        "runs": [asdict(outcome) for outcome in results.outcomes],
    }


def without_nan(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in which NaN, which JSON cannot represent, is replaced by None."""
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def lines_about(results: StudyResults) -> list[str]:
    """Return sentences about how the study was done: what was compared, with how many seeds, and under which budget."""
    study = results.study
    budgets = " and ".join(format_amount(study.unit, budget) for budget in study.budgets)
    what = study.stage
    controls = [arm.name for arm in study.arms if arm.control]
    searched = next((arm.search for arm in study.arms if arm.search is not None), None)
    seeds = f"{study.seeds} seed{'s' if study.seeds > 1 else ''}"
    found = [f"{len(study.arms)} arms (the recipes that are compared), each with {budgets} of {what} and {seeds}."]
    if controls:
        found.append(f"{', '.join(controls)}: a control without {what}, which spends nothing of the budget.")
    if searched is not None:
        found.append(
            f"Each arm first tried {len(searched.rates)} learning rates with {100 * searched.share:g} % of the budget each; the best one "
            f"on {searched.by} was used. This search costs {100 * searched.cost:g} % of the budget of one run, for every arm."
        )
    return found


def changes(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Return a table of the settings in which the arms (compared recipes) differ, with one row per arm."""
    flat = [
        flatten(
            {
                "model": arm.model,
                "pretrain": arm.pretrain or {},
                "adapt": arm.adapt or {},
                "finetune": arm.finetune or {},
                **{
                    f"compress {number}": {step.verb: step.settings or "defaults"}
                    for number, step in enumerate(arm.compress, 1)
                },
            }
        )
        for arm in arms
    ]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    different = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
    return [
        {"arm": arm.name, **{key: str(one.get(key, "")) for key in different}, "control": "yes" if arm.control else ""}
        for arm, one in zip(arms, flat, strict=True)
    ]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one mapping with dotted keys.

    >>> flatten({"pretrain": {"objective": "mlm"}})
    {'pretrain.objective': 'mlm'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def failure_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return a table of the failed runs with their errors."""
    return [{"arm": one.arm, "seed": one.seed, "error": one.error} for one in results.failures]


def all_notes(results: StudyResults) -> list[str]:
    """Return the notes and warnings that a reader needs to interpret the numbers, one sentence each."""
    found = notes(results.study.seeds, len(results.planned), results.examples())
    if trivial := results.trivial_scores():
        scores = join([f"{score:.1f} on {metric}" for metric, score in trivial.items()])
        found.append(
            f"A model that always predicts the most frequent label of the training examples would score {scores}."
        )
    if warning := results.unequal_costs():
        found.insert(0, f"Warning: {warning}.")
    if results.failures:
        found.insert(
            0, f"{len(results.failures)} of {len(results.outcomes)} runs failed; scores are means of the others."
        )
    return found


def render_summary(results: StudyResults, where: Mapping[str, Any]) -> str:
    """Return the summary of a study in Markdown; `where` describes the machine and the versions."""
    study = results.study
    lines = [f"# {study.question}", "", results.headline(), ""]
    lines += [study.about, ""] if study.about else []
    lines += [f"Claim: {study.claim}" + (f" ({study.source})" if study.source else ""), ""] if study.claim else []
    if study.published:
        lines += ["Published: " + "; ".join(f"{name} {value}" for name, value in study.published.items()), ""]
    lines += ["## What was compared", "", *lines_about(results), ""]
    lines += [markdown_table(changes(study.arms)), ""]
    lines += ["## Results", "", markdown_table(results.table()), ""]
    if results.judged:
        lines += ["## What was expected", "", *(f"- {one}" for one in results.judged), ""]
    lines += ["## What the results show", ""]
    lines += [f"- {line}" for metric in results.metrics for line in results.findings(metric)]
    lines += [f"- {sentence(one)}" for one in results.ensemble_gains]
    lines += ["", *(f"- {line}" for line in all_notes(results)), ""]
    if study.departures:
        lines += [f"Departures from the source: {study.departures}", ""]
    if results.failures:
        lines += ["## Failed runs", "", markdown_table(failure_rows(results)), ""]
    lines += [describe_machine(where), ""]
    return "\n".join(lines)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows, which all have the same keys, as a Markdown table.

    >>> print(markdown_table([{"arm": "a|b", "score": 1}]))
    | arm | score |
    | --- | --- |
    | a/b | 1 |
    """
    if not rows:
        return ""
    cells = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([str(value).replace("|", "/").replace("\\n", " ") for value in row.values()] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def describe_machine(where: Mapping[str, Any]) -> str:
    """Return the date, the machine, and the versions with which the results were measured, in one line."""
    device = where.get("gpu") or f"{where['machine']} CPU, {where['threads']} threads"
    return f"Written on {where['date']} on {device}, pretune {where['pretune']}, torch {where['packages'].get('torch', '?')}."


def render_report(results: StudyResults, where: Mapping[str, Any]) -> str:
    """Return the report of a study as a self-contained HTML page; `where` describes the machine and the versions."""
    study = results.study
    answer = [f'<p style="font-size:1.15rem">{escape(results.headline())}</p>']
    answer += [paragraph(study.about)] if study.about else []
    answer.append(paragraph(" ".join(lines_about(results)[:1])))
    if study.claim:
        answer.append(paragraph(f"Claim: {study.claim}" + (f" — {study.source}" if study.source else "")))
    if study.published:
        answer.append(
            paragraph("Published: " + "; ".join(f"{name} {value}" for name, value in study.published.items()))
        )
    parts = [
        section(
            "In short",
            *answer,
            *draw_all_scores(results, results.metrics[:1]),
            small("One mark per seed, a bar at the mean."),
        )
    ]
    best = results.best_arm()
    rows = results.table()
    place = next((number for number, row in enumerate(rows) if row["arm"] == best), None)
    parts.append(
        section(
            "Scores and costs",
            render_table(rows, place),
            small(
                "± is the standard deviation over seeds. Costs are means per run. A colored row is shown to beat all others."
            ),
        )
    )
    if results.judged:
        parts.append(section("What was expected", bullets([str(one) for one in results.judged])))
    found = [line for metric in results.metrics for line in results.findings(metric)]
    found += [sentence(one) for one in results.ensemble_gains]
    parts.append(section("What the results show", bullets(found), bullets(all_notes(results), faint=True)))
    if len(study.budgets) > 1:
        parts.append(
            section(
                "Quality by budget",
                *(draw_budgets(results, metric) for metric in results.metrics),
                *budget_tables(results),
            )
        )
    if results.metrics and results.ranking(results.metrics[0]):
        parts.append(
            section(
                "Quality and cost",
                draw_pareto(results, results.metrics[0]),
                small("The gray line joins the arms that no other arm beats in both quality and cost (Pareto front)."),
            )
        )
    parts += curve_sections(results)
    if len(results.metrics) > 1:
        parts.append(section("Further metrics", *draw_all_scores(results, results.metrics[1:])))
    parts.append(section("What was compared", *map(paragraph, lines_about(results)), render_table(changes(study.arms))))
    if study.departures:
        parts.append(section("Departures from the source", paragraph(study.departures)))
    if results.failures:
        parts.append(section("Failed runs", render_table(failure_rows(results))))
    parts.append(section("All runs", render_table(run_rows(results)), paragraph(describe_machine(where))))
    return render_page(study.question, *parts)


def curve_sections(results: StudyResults) -> list[str]:
    """Return the part of the report with the learning curves, as lines of HTML; empty if there are no curves."""
    terms = curve_terms(results)
    if not terms:
        return []
    several = [name for name, arms in terms.items() if len(arms) > 1]
    note = "One line per seed. Losses of different objectives measure different things and are drawn apart."
    if several:
        note += f" Arms in one chart share the objective: {', '.join(name.removeprefix('dev/') for name in several)}."
    return [section("Learning curves", *(draw_curves(results, term) for term in terms), small(note))]


def budget_tables(results: StudyResults) -> list[str]:
    """Return the part of the report with the first metric by arm (compared recipe) and budget, as lines of HTML."""
    metric = results.metrics[0]
    return [
        render_table(
            [
                {"arm": name}
                | {
                    format_amount(results.study.unit, b): mean_and_spread(results.scores(name, metric, b))
                    for b in results.study.budgets
                }
                for name in results.names
            ]
        )
    ]


def run_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return a table with one row per run: its metrics and its cost, or a note that it failed."""
    rows = []
    for one in results.outcomes:
        row: dict[str, Any] = {
            "arm": one.arm,
            "seed": one.seed,
            "budget": format_amount(results.study.unit, one.budget),
        }
        row |= (
            {"lr": "" if one.lr is None else f"{one.lr:g}"} if any(x.lr is not None for x in results.outcomes) else {}
        )
        for metric in results.metrics:
            row[metric] = f"{one.metrics[metric]:.4f}" if metric in one.metrics else ""
        row |= {"steps": f"{one.cost['step']:.0f}" if "step" in one.cost else "", "whole run, s": f"{one.seconds:.0f}"}
        rows.append(row | {"": "failed" if one.error else ""})
    return rows


def bullets(lines: Sequence[str], faint: bool = False) -> str:
    """Return sentences as an HTML list; `faint` makes its text small and gray."""
    cells = (f"<small>{escape(line)}</small>" if faint else escape(line) for line in lines)
    return f"<ul>{''.join(f'<li>{cell}</li>' for cell in cells)}</ul>"


def small(text: str) -> str:
    """Return a note as HTML in small letters."""
    return f"<p><small>{escape(text)}</small></p>"
