"""Write the results of studies for readers: a page, a table, and a plot of each study, and the verdicts of all of them.

The folder of a study gets summary.md, results.csv, scores.png, and cost.json; verdicts.md has one row for each study, with a proposal for
the sentence in docs/studies/README.md.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretune.runtime.parsing import read_json
from pretune.studies.execution import read_results
from pretune.studies.results import StudyResults, join
from pretune.studies.study_file import Study, format_amount
from pretune.studies.study_report import all_notes, changes, failure_rows, lines_about, markdown_table
from pretune.studies.study_run import Outcome, read_outcome
from pretune.studies.verdict import NUMBERS, JudgedExpectation, mean_and_spread, number, sentence
from pretune.text.corpus.table_writer import table_writer
from pretune.training.run_folder import environment

WHERE = "where.json"
SUMMARY, TABLE, PLOT, COST, VERDICTS = "summary.md", "results.csv", "scores.png", "cost.json", "verdicts.md"
LINKS = {"holds": "", "does not hold": "but ", "undecided": "open"}  # between the parts of a verdict


@dataclass(frozen=True)
class StudyPage:
    """The results of a study, with a description of the machine and of the cost."""

    name: str
    results: StudyResults
    where: Mapping[str, Any]
    cost: Mapping[str, Any]

    def verdict(self) -> str:
        """Return one sentence that says whether the claim holds, and by which numbers."""
        return verdict_sentence(self.results)

    def render(self) -> str:
        """Return the page in Markdown."""
        results, study = self.results, self.results.study
        seeds = f"{study.seeds} seed{'s' if study.seeds > 1 else ''}"
        lines = [f"# {study.question}", "", f"**Verdict (a proposal): {self.verdict()}.**", ""]
        lines += [f"Claim: {study.claim}", ""] if study.claim else []
        lines += [study.about, ""] if study.about else []
        lines += [f"Departures from the source: {study.departures}.", ""] if study.departures else []
        if study.published:
            lines += ["## What the source measured", "", f"{study.source}:", ""]
            lines += [markdown_table([{"": name, "published": value} for name, value in study.published.items()]), ""]
        elif study.source:
            lines += [f"Source: {study.source}", ""]
        lines += ["## What we measured", ""]
        lines += [f"Mean ± standard deviation over {seeds}. {' '.join(lines_about(results))}", ""]
        lines += [markdown_table(results.table()), "", f"![scores of all arms, one mark per seed]({PLOT})", ""]
        if results.judged:
            lines += ["## What was expected", "", markdown_table([judged_row(one) for one in results.judged]), ""]
            lines += [f"- {sentence(one.comparison)}" for one in results.judged] + [""]
        if further := further_findings(results):
            lines += ["## What else the results show", "", *(f"- {line}" for line in further), ""]
        lines += ["## How to read the numbers", "", *(f"- {line}" for line in all_notes(results)), ""]
        lines += ["## What differs between the arms", "", markdown_table(changes(study.arms)), ""]
        if results.failures:
            lines += ["## Failed runs", "", markdown_table(failure_rows(results)), ""]
        return "\n".join([*lines, "## Cost", "", self.describe_cost(), ""])

    def describe_cost(self) -> str:
        """Return what the study cost, and on which machine it ran, as sentences."""
        cost, where, study = self.cost, self.where, self.results.study
        budgets = " and ".join(format_amount(study.unit, budget) for budget in study.budgets)
        minutes = cost["seconds_of_runs"] / 60
        at_once = f", {cost['runs_at_once']} at a time" if cost["runs_at_once"] > 1 else ""
        text = f"{cost['runs']} runs of {budgets} of {study.stage} each took {minutes:.1f} minutes in all{at_once}"
        text += (
            f", with evaluations but without {cost['trials']} trials of learning rates."
            if cost["trials"]
            else ", with evaluations."
        )
        versions = f"pretune {where['pretune']}, torch {where['packages'].get('torch', '?')}, Python {where['python']}"
        commit = f", commit {cost['commit'][:12]}" if cost["commit"] else ""
        return f"{text} {cost['date']}, {cost['device']}, {versions}{commit}; `python perf/run_studies.py run {self.name}`."

    def row(self) -> dict[str, str]:
        """Return the row of the study in the table of verdicts."""
        measured = f"{self.cost['date']}, {self.cost['device']}, {self.results.study.seeds} seeds"
        return {
            "study": f"[{self.name}]({self.name}/{SUMMARY})",
            "verdict": self.results.verdict or "no expectation",
            "sentence": f"{self.verdict()} ([measured]({self.name}/{SUMMARY}))",
            "measured": measured,
        }


def further_findings(results: StudyResults) -> list[str]:
    """Return sentences about the comparisons that no expectation is about."""
    told = {(frozenset((one.comparison.first, one.comparison.second)), one.comparison.metric) for one in results.judged}
    found = []
    for metric in results.metrics:
        for budget in results.study.budgets:
            for one in results.comparisons(metric, budget):
                if budget != results.budget or (frozenset((one.first, one.second)), metric) not in told:
                    found.append(sentence(one, format_amount(results.study.unit, budget)))
    gains = [one for one in results.ensemble_gains if (frozenset((one.first, one.second)), one.metric) not in told]
    return found + [sentence(one) for one in gains]


def verdict_sentence(results: StudyResults) -> str:
    """Return one sentence that says whether what was expected holds, and by which numbers."""
    if not results.judged:
        return results.headline().rstrip(".")
    parts = list[str]()
    for verdict, link in LINKS.items():
        own = [one for one in results.judged if one.verdict == verdict]
        if own:
            seeds = f" with {seed_words(own[0].comparison.seeds)}" if verdict == "undecided" else ""
            begin = f"{link}{seeds}: " if parts and seeds else link if parts else f"{results.verdict}{seeds}: "
            parts.append(begin + join([clause(one) for one in own]))
    return "; ".join(parts)


def seed_words(count: int) -> str:
    """Return a number of seeds in words.

    >>> seed_words(1), seed_words(3)
    ('one seed', 'three seeds')
    """
    return f"{NUMBERS.get(count, str(count))} seed{'' if count == 1 else 's'}"


def clause(judged: JudgedExpectation) -> str:
    """Return a part of a sentence that says, with numbers, whether an expectation is met."""
    one, expected = judged.comparison, judged.expectation
    if not one.seeds:
        return f"{expected} (not measured)"
    scores = {one.first: mean_and_spread(one.first_scores), one.second: mean_and_spread(one.second_scores)}
    digits = 1 if one.unit else 3
    unit = f" {one.unit}" if one.unit else ""
    spread = "" if math.isnan(one.half_width) else f" ± {number(one.half_width, digits)}"
    size = f"{number(abs(one.difference), digits)}{spread}{unit}"
    within = expected.other_metric is not None or expected.ensemble
    where = "" if within else f" on {shorten_metric(one.metric)}"
    ahead, behind = (one.first, one.second) if one.difference >= 0 else (one.second, one.first)
    means = f"({scores[ahead]} against {scores[behind]})"
    if one.difference == 0:
        return f"{one.first} and {one.second} have the same mean{where} ({scores[one.first]})"
    if expected.equal and judged.verdict == "holds":
        return f"{ahead} and {behind} are within {expected.amount:g}{unit} of each other{where} {means}"
    only = "only " if judged.verdict == "does not hold" and ahead == one.first and not expected.equal else ""
    return f"{ahead} is {only}{size} ahead of {behind}{where} {means}"


def shorten_metric(metric: str) -> str:
    """Return the name of an evaluation instead of that of its primary metric.

    >>> shorten_metric("mnli.accuracy"), shorten_metric("xnli.ru/accuracy")
    ('mnli', 'xnli.ru/accuracy')
    """
    return metric if "/" in metric else metric.split(".", 1)[0]


def judged_row(judged: JudgedExpectation) -> dict[str, str]:
    """Return an expectation as a row of a table: what was expected, the difference with its interval, and the verdict."""
    one = judged.comparison
    low, high = one.interval
    interval = "unknown" if low != low else f"{low:.3g} to {high:.3g}{f' {one.unit}' if one.unit else ''}"
    return {
        "expected": str(judged.expectation),
        "difference (95 % interval, all expectations together)": interval,
        "verdict": judged.verdict,
    }


def finished_outcomes(out: Path, pattern: str = "seed-*") -> list[Outcome]:
    """Return the outcomes of the finished runs of a study, without the trials of its search."""
    found = (read_outcome(path.parent) for path in sorted(out.glob(f"runs/*/*/{pattern}/outcome.json")))
    return [outcome for outcome in found if outcome is not None]


def complete_seeds(study: Study, outcomes: Sequence[Outcome]) -> int:
    """Return the number of first seeds for which every arm has an outcome at every budget."""
    done = {(outcome.arm, outcome.budget, outcome.seed) for outcome in outcomes}
    wanted = [(arm.name, budget) for arm in study.arms for budget in study.budgets]
    return next((n for n in range(study.seeds) if any((*one, n) not in done for one in wanted)), study.seeds)


def read_page(name: str, study: Study, out: Path) -> StudyPage | None:
    """Return the results of the complete seeds of the study in the folder `out`; None if there are none."""
    outcomes = finished_outcomes(out)
    count = complete_seeds(study, outcomes)
    if not count:
        return None
    order = {arm.name: at for at, arm in enumerate(study.arms)}
    budgets = set(study.budgets)
    kept = [one for one in outcomes if one.seed < count and one.arm in order and one.budget in budgets]
    kept.sort(key=lambda one: (one.budget, one.seed, order[one.arm]))
    results = read_results(replace(study, seeds=count), kept, out)
    where = read_json(out / WHERE) if (out / WHERE).is_file() else environment()
    cost = {
        "date": where.get("date") or datetime.now(UTC).date().isoformat(),
        "commit": where.get("revision") or current_commit(),
        "device": where.get("gpu") or f"{where['machine']} CPU",
        "runs_at_once": where.get("at_once", 1),
        "seeds": count,
        "runs": len(kept),
        "trials": len(finished_outcomes(out, "lr-*")),
        "failed_runs": sum(outcome.error is not None for outcome in kept),
        "seconds_of_runs": round(sum(outcome.seconds for outcome in kept)),
        "verdict": results.verdict,
        "headline": results.headline(),
        "sentence": verdict_sentence(results),
    }
    return StudyPage(name, results, where, cost)


def write_page(page: StudyPage, folder: Path) -> None:
    """Write the results of a study to a folder: a page, a table of its runs, a plot, and the cost."""
    folder.mkdir(parents=True, exist_ok=True)
    with table_writer(folder / TABLE, safe=True) as write:
        write(page.results.rows())
    (folder / SUMMARY).write_text(page.render(), encoding="utf-8")
    if page.results.metrics:
        draw_scores(page.results, folder / PLOT)
    (folder / COST).write_text(json.dumps(page.cost, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_verdicts(pages: Sequence[StudyPage], folder: Path) -> None:
    """Write the table of the verdicts of all studies."""
    text = "# Verdicts of the studies\n\nProposals for the sentences in the table of claims.\n\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VERDICTS).write_text(text + markdown_table([page.row() for page in pages]) + "\n", encoding="utf-8")


def current_commit() -> str:
    """Return the commit of this repository, or "" outside of a repository."""
    words = ["git", "rev-parse", "HEAD"]
    here = Path(__file__).parent
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=here).stdout.strip()


def draw_scores(results: StudyResults, file: Path) -> None:
    """Draw the scores of all arms on each metric: one mark per seed, and a bar at the mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names, metrics = results.names, results.metrics
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(1.5 + 3.2 * len(metrics), 1.2 + 0.35 * len(names)), squeeze=False
    )
    for axis, metric in zip(axes[0], metrics, strict=True):
        for at, name in enumerate(names):
            scores = results.scores(name, metric)
            axis.plot(scores, [at] * len(scores), "o", color="C0", alpha=0.6)
            if scores:
                axis.plot([sum(scores) / len(scores)], [at], "|", color="black", markersize=16)
        axis.set_yticks(range(len(names)), names if axis is axes[0][0] else [])
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_title(metric, fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)
