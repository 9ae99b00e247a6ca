"""The results of a study: scores by arm, the comparisons between arms, the expectations, and what everything cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean
from typing import Any

from pretune.studies.comparisons import Comparison, pairs
from pretune.studies.ensembles import EnsembleComparison, Gains
from pretune.studies.metrics import display_factor, lower_is_better, unit_name
from pretune.studies.planning import TOLERANCE
from pretune.studies.study_file import Study, format_amount
from pretune.studies.study_run import Outcome
from pretune.studies.verdict import JudgedExpectation, Verdict, mean_and_spread, overall_verdict, sentence


@dataclass(frozen=True)
class StudyResults:
    """The outcomes of all runs of a study, with the latency of each compared recipe and of ensembles if measured."""

    study: Study
    outcomes: tuple[Outcome, ...]
    latency: dict[str, dict[str, float]] = field(default_factory=dict)
    ensembles: Gains = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the arms (compared recipes), in the order of the study file."""
        return [arm.name for arm in self.study.arms]

    @property
    def budget(self) -> float:
        """The largest budget of the study, by which the arms are judged."""
        return self.study.budgets[-1]

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes of the runs that failed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @cached_property
    def metrics(self) -> list[str]:
        """The primary metric of each evaluation that has results, as EVALUATION.METRIC."""
        found = []
        for evaluation in self.study.evaluations:
            names = {
                outcome.primary[evaluation.name] for outcome in self.outcomes if evaluation.name in outcome.primary
            }
            found += [f"{evaluation.name}.{name}" for name in sorted(names)]
        return found

    def metric_of(self, name: str) -> str:
        """Return the metric, as EVALUATION.METRIC, that an expectation calls EVALUATION or EVALUATION.METRIC."""
        return next((metric for metric in self.metrics if metric.split(".")[0] == name), name)

    def raw(self, arm: str, metric: str, budget: float | None = None) -> list[float]:
        """Return the unscaled values of a metric for an arm, one per seed whose run did not fail, ordered by seed.

        If `budget` is None, it is the largest budget of the study.
        """
        budget = self.budget if budget is None else budget
        own = [x for x in self.outcomes if x.arm == arm and x.budget == budget and metric in x.metrics]
        return [outcome.metrics[metric] for outcome in sorted(own, key=lambda outcome: outcome.seed)]

    def factor(self, metric: str) -> float:
        """Return the factor by which values of a metric are multiplied for display."""
        return display_factor(metric, [x.metrics[metric] for x in self.outcomes if metric in x.metrics])

    def scores(self, arm: str, metric: str, budget: float | None = None) -> list[float]:
        """Return the values of a metric for an arm, scaled for display, one per seed whose run did not fail.

        If `budget` is None, it is the largest budget of the study.
        """
        factor = self.factor(metric)
        return [factor * value for value in self.raw(arm, metric, budget)]

    def compare(self, first: str, second: str, metric: str, budget: float | None = None, count: int = 1) -> Comparison:
        """Return the comparison of two arms by a metric, as one of `count` comparisons that share 95 % confidence."""
        sides = [tuple(self.scores(name, metric, budget)) for name in (first, second)]
        unit = unit_name(self.factor(metric))
        return Comparison(first, second, metric, sides[0], sides[1], lower_is_better(metric), unit, count)

    def compare_metrics(self, arm: str, first: str, second: str, count: int = 1) -> Comparison:
        """Return the comparison of two metrics of one arm, whose names take the places of the arms."""
        factor = max(self.factor(first), self.factor(second))
        sides = [tuple(factor * value for value in self.raw(arm, metric)) for metric in (first, second)]
        names = [f"{arm} on {metric}" for metric in (first, second)]
        unit = unit_name(factor)
        return Comparison(names[0], names[1], first, sides[0], sides[1], lower_is_better(first), unit, count)

    def compare_ensemble(self, evaluation: str, arm: str, count: int = 1) -> EnsembleComparison:
        """Return the comparison of the ensemble of an arm's seeds with its single models.

        `evaluation` is one of the kind `ensemble`, and `count` the number of comparisons that share 95 % confidence.
        """
        of = next(one for one in self.study.evaluations if one.name == evaluation).settings["of"]
        metric = self.metric_of(of)
        names = f"an ensemble of {arm}", f"a single model of {arm}"
        found = self.ensembles.get(evaluation, {}).get(arm)
        if found is None:
            return EnsembleComparison(*names, metric, (), (), lower_is_better(metric), "", count)
        factor = self.factor(metric)
        single = tuple(factor * value for value in found["single"])
        together = (factor * found["ensemble"],) * len(single)
        without = tuple(factor * value for value in found["without"])
        return EnsembleComparison(
            *names, metric, together, single, lower_is_better(metric), unit_name(factor), count, without
        )

    @cached_property
    def ensemble_gains(self) -> list[EnsembleComparison]:
        """The comparisons of all ensembles that were scored with single models."""
        scored = [(name, arm) for name, by_arm in self.ensembles.items() for arm in by_arm if arm in self.names]
        return [self.compare_ensemble(name, arm, len(scored)) for name, arm in scored]

    def ranking(self, metric: str, budget: float | None = None) -> list[str]:
        """Return the names of the arms that have scores on a metric, sorted by their mean score, the best first."""
        means = {name: mean(scores) for name in self.names if (scores := self.scores(name, metric, budget))}
        return sorted(means, key=lambda name: means[name], reverse=not lower_is_better(metric))

    @property
    def planned(self) -> list[tuple[str, str]]:
        """The pairs of arms that the study compares."""
        return pairs(self.names, self.study.reference)

    def comparisons(self, metric: str, budget: float | None = None) -> list[Comparison]:
        """Return the comparisons by a metric that the report describes.

        They are those with the reference arm or, without a reference, those of the best arm with all others.
        """
        count = len(self.planned)
        if self.study.reference is not None:
            told = self.planned
        else:
            ranked = self.ranking(metric, budget) + [n for n in self.names if n not in self.ranking(metric, budget)]
            told = [(ranked[0], name) for name in ranked[1:]]
        return [self.compare(first, second, metric, budget, count) for first, second in told]

    def findings(self, metric: str) -> list[str]:
        """Return sentences about the comparisons by a metric, one per comparison and budget."""
        return [
            sentence(one, format_amount(self.study.unit, budget))
            for budget in self.study.budgets
            for one in self.comparisons(metric, budget)
        ]

    @cached_property
    def judged(self) -> list[JudgedExpectation]:
        """The expectations of the study, each with the comparison of two arms at the largest budget that decides it."""
        count = len(self.study.expectations)
        found = []
        for one in self.study.expectations:
            metric = self.metric_of(one.metric)
            compared: Comparison
            if one.ensemble:
                compared = self.compare_ensemble(one.metric, one.first, count)
            elif one.other_metric is None:
                compared = self.compare(one.first, one.second, metric, count=count)
            else:
                compared = self.compare_metrics(one.first, metric, self.metric_of(one.other_metric), count)
            found.append(JudgedExpectation(one, compared))
        return found

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on all expectations together; None if the study has no expectations."""
        return overall_verdict(self.judged) if self.judged else None

    def tally(self) -> str:
        """Return how many of the expectations hold, do not hold, and are undecided, as text."""
        found = [one.verdict for one in self.judged]
        counts = {text: found.count(text) for text in ("holds", "does not hold", "undecided") if text in found}
        plural = {"holds": "hold", "does not hold": "do not hold", "undecided": "are undecided"}
        single = {**{text: text for text in plural}, "undecided": "is undecided"}
        parts = [f"{count} {(single if count == 1 else plural)[text]}" for text, count in counts.items()]
        return f"of {len(found)} expectations, {join(parts)}"

    def headline(self) -> str:
        """Return the answer to the question of the study in one or two sentences."""
        if not self.metrics:
            return f"All {len(self.outcomes)} runs failed, so that the question stays open."
        metric = self.metrics[0]
        ranked = self.ranking(metric)
        if not ranked:
            return "All runs at the largest budget failed, so that the question stays open."
        best = ranked[0]
        score = mean_and_spread(self.scores(best, metric))
        if self.verdict is not None:
            answer = {"undecided": "is not decided by this study"}.get(self.verdict, f"{self.verdict} here")
            answer += f" ({self.tally()})" if self.verdict == "holds in part" else ""
            what = f"“{self.study.claim}”" if self.study.claim else "What was expected"
            level = [name for name in ranked if mean(self.scores(name, metric)) == mean(self.scores(best, metric))]
            have = "has" if len(level) == 1 else "have"
            missing = [name for name in self.names if name not in ranked]
            failed = f" {join(missing)} failed." if missing else ""
            return f"{what} {answer}. {join(level)} {have} the best mean of {metric}, {score}.{failed}"
        beaten = self.beaten(metric, best)
        level = [name for name in ranked[1:] if name not in beaten]
        if not level:
            return (
                f"{best} is the best on {metric}, with {score}: it beats {join(beaten)}."
                if beaten
                else f"Only {best} has a score: {score}."
            )
        if beaten:
            return f"{best} has the highest score on {metric}, {score}, and beats {join(beaten)}; {join(level)} may be as good."
        return f"None of the recipes is shown to be the best on {metric}: {best} has the best score, {score}, but {join(level)} may be as good."

    def table(self, budget: float | None = None) -> list[dict[str, Any]]:
        """Return a table with one row per arm: scores with their spread, measured costs, and number of failed runs."""
        rows = []
        for arm in self.study.arms:
            row: dict[str, Any] = {"arm": arm.name}
            for metric in self.metrics:
                better = "lower is better" if lower_is_better(metric) else unit_name(self.factor(metric))
                row[f"{metric} ({better})" if better else metric] = mean_and_spread(
                    self.scores(arm.name, metric, budget)
                )
            rows.append(row | self.costs(arm.name, budget))
        return rows

    def costs(self, arm: str, budget: float | None = None) -> dict[str, Any]:
        """Return the mean cost of an arm's runs: FLOPs, tokens, seconds, size of the model, and failed runs."""
        budget = self.budget if budget is None else budget
        own = [x for x in self.outcomes if x.arm == arm and x.budget == budget]
        done = [outcome for outcome in own if outcome.error is None]
        costs: dict[str, Any] = {
            name: average([x.cost.get(name, 0.0) for x in done]) for name in ("flops", "tokens", "seconds")
        }
        row: dict[str, Any] = {
            "FLOPs": shorten(costs["flops"]),
            "tokens": f"{costs['tokens']:,.0f}",
            "training, s": f"{costs['seconds']:.1f}",
        }
        if parameters := [x.parameters for x in done if x.parameters is not None]:
            row["parameters"] = f"{parameters[0]:,}"
        elif any(x.parameters is not None for x in self.outcomes):
            row["parameters"] = ""
        if self.latency:
            row["one text, ms"] = f"{self.latency[arm]['latency_ms']:.1f}" if arm in self.latency else ""
        return row | {"failed": f"{len(own) - len(done)} of {len(own)}"}

    def unequal_costs(self) -> str:
        """Return a warning if the arms have used different amounts of the budget, or "" if they have not."""
        warnings = []
        for budget in self.study.budgets:
            spent = {}
            for arm in self.study.arms:
                own = [
                    x.cost[self.study.unit]
                    for x in self.outcomes
                    if x.arm == arm.name and x.budget == budget and x.cost
                ]
                if own and not arm.control:
                    spent[arm.name] = mean(own)
            if spent and 1 - min(spent.values()) / max(spent.values()) > TOLERANCE:
                figures = ", ".join(
                    f"{name} {format_amount(self.study.unit, amount)}" for name, amount in spent.items()
                )
                share = 100 * (1 - min(spent.values()) / max(spent.values()))
                warnings.append(f"the arms spent amounts that differ by {share:.1f} %, more than planned: {figures}")
        return "; ".join(warnings)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv, one per run, including runs that failed."""
        names = sorted({name for outcome in self.outcomes for name in outcome.metrics})
        costs = sorted({name for outcome in self.outcomes for name in outcome.cost})
        return [
            {
                "arm": x.arm, "seed": x.seed, f"budget_{self.study.unit}": x.budget, "lr": x.lr,
                **{name: x.metrics.get(name) for name in names}, **{name: x.cost.get(name) for name in costs},
                "run_seconds": round(x.seconds, 2), "parameters": x.parameters, "error": x.error,
            }
            for x in self.outcomes
        ]  # fmt: skip

    def beaten(self, metric: str, best: str) -> list[str]:
        """Return the arms that the arm `best` is shown to beat, with 95 % confidence for all pairs of arms together."""
        count = len(pairs(self.names))
        others = [name for name in self.ranking(metric) if name != best]
        return [name for name in others if self.compare(best, name, metric, count=count).conclusion == "better"]

    def best_arm(self) -> str | None:
        """Return the arm (compared recipe) that is shown to beat all others on the first metric, or None."""
        ranked = self.ranking(self.metrics[0]) if self.metrics else []
        return (
            ranked[0] if len(ranked) > 1 and len(self.beaten(self.metrics[0], ranked[0])) == len(ranked) - 1 else None
        )

    def trivial_scores(self) -> dict[str, float]:
        """Return the scores of the majority-class baseline by metric, scaled for display, where there are such scores."""
        found = {}
        for metric in self.metrics:
            own = [x.trivial[name] for x in self.outcomes if (name := metric.split(".")[0]) in x.trivial]
            if own and mean(own) > 0:
                found[metric] = self.factor(metric) * mean(own)
        return found

    def examples(self) -> int | None:
        """Return the number of examples on which the first metric is measured, or None if it differs between runs."""
        name, settings = self.study.metric, self.study.evaluations[0].settings
        if settings["kind"] == "task" and "dev" not in settings:
            return None
        return next((x.examples[name] for x in self.outcomes if name in x.examples), None)


def average(values: Sequence[float]) -> float:
    """Return the mean of the given values, or 0 if there are none."""
    return mean(values) if values else 0.0


def shorten(value: float) -> str:
    """Return a large number as text with three significant digits.

    >>> shorten(123456789.0), shorten(0.0)
    ('1.23e8', '0')
    """
    if not value:
        return "0"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}e{int(power)}"


def join(names: Sequence[str]) -> str:
    """Return names as a list within a sentence.

    >>> join(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
