"""The figures of a study's report: losses during training, quality by budget, and quality against cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from pretune.runtime.figures import figure_fonts, plain_label
from pretune.runtime.html_report import COLORS, embed_figure
from pretune.studies.metrics import is_better, lower_is_better, unit_name
from pretune.studies.results import StudyResults

MARKERS = "osD^vP*X"
UNITS = {"flops": "FLOPs", "seconds": "seconds", "tokens": "tokens"}
Point = tuple[str, float, float]  # name, cost, quality


def color_of(number: int) -> str:
    """Return the color in which figures show the arm (compared recipe) with index `number`."""
    return COLORS[number % len(COLORS)]


def loss_names(results: StudyResults) -> list[str]:
    """Return the names of all losses in the learning curves of the compared recipes.

    Names that begin with dev/ are losses on held-out data.
    """
    return sorted(
        {name for x in results.outcomes for line in x.curve for name in line} - {"step", "flops", "seconds", "tokens"}
    )


def curve_terms(results: StudyResults) -> dict[str, list[str]]:
    """Return, for each loss term, the names of the arms (compared recipes) whose learning curves have it.

    The held-out loss is used if there is one, else the training loss.
    """
    names = loss_names(results)
    chosen = [name for name in names if name.startswith("dev/") or f"dev/{name}" not in names]
    terms: dict[str, list[str]] = {}
    for name in chosen:
        having = {x.arm for x in results.outcomes if sum(name in line for line in x.curve) > 1}
        if having:
            terms[name] = [arm for arm in results.names if arm in having]
    return terms


def draw_curves(results: StudyResults, term: str) -> str:
    """Return a figure of the loss `term` during training, against FLOPs and seconds, with one thin line per seed.

    It shows all arms (compared recipes) that have this loss.
    """
    from matplotlib.figure import Figure

    with figure_fonts(results.names):
        figure = Figure(figsize=(9.0, 3.2), layout="constrained")
        for axes, unit in zip(figure.subplots(1, 2, sharey=True), ("flops", "seconds"), strict=True):
            for number, arm in enumerate(results.names):
                own = [x for x in results.outcomes if x.arm == arm and x.budget == results.budget]
                label: str | None = plain_label(arm, 40)
                for outcome in own:
                    points = [(line[unit], line[term]) for line in outcome.curve if term in line]
                    if points:
                        axes.plot(
                            *zip(*points, strict=True), color=color_of(number), linewidth=1.6, alpha=0.75, label=label
                        )
                        label = None
            axes.set_xlabel(UNITS[unit])
            tidy(axes)
        figure.axes[0].set_ylabel(
            ("held-out loss " if term.startswith("dev/") else "training loss ") + term.removeprefix("dev/")
        )
        figure.axes[0].legend(frameon=False, fontsize="small")
        return embed_figure(figure)


def draw_budgets(results: StudyResults, metric: str) -> str:
    """Return a figure of a metric by budget for all arms (compared recipes).

    It has one mark per seed, and a line through the means.
    """
    from matplotlib.figure import Figure

    with figure_fonts(results.names):
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, arm in enumerate(results.names):
            by_budget = {budget: results.scores(arm, metric, budget) for budget in results.study.budgets}
            points = [(budget, score) for budget, scores in by_budget.items() for score in scores]
            means = [(budget, mean(scores)) for budget, scores in by_budget.items() if scores]
            if points:
                axes.scatter([x for x, _ in points], [y for _, y in points], color=color_of(number), s=14, alpha=0.5)
                axes.plot(*zip(*means, strict=True), color=color_of(number), linewidth=2.0, label=plain_label(arm, 40))
        axes.set_xscale("log")
        axes.set_xlabel(f"budget, {UNITS[results.study.unit]}")
        axes.set_ylabel(quality_label(results, metric))
        tidy(axes)
        axes.legend(frameon=False, fontsize="small")
        return embed_figure(figure)


def draw_scores(results: StudyResults, metric: str) -> str:
    """Return a figure of the scores of all arms (compared recipes) at the largest budget.

    It has one mark per seed, and one for the mean.
    """
    from matplotlib.figure import Figure

    ranked = results.ranking(metric)[::-1]
    with figure_fonts(results.names):
        figure = Figure(figsize=(8.0, 0.7 + 0.42 * len(ranked)), layout="constrained")
        axes = figure.subplots()
        for place, arm in enumerate(ranked):
            scores, color = results.scores(arm, metric), color_of(results.names.index(arm))
            axes.scatter(scores, [place] * len(scores), color=color, s=30, alpha=0.6, zorder=2)
            axes.plot([mean(scores)] * 2, [place - 0.28, place + 0.28], color=color, linewidth=3, zorder=3)
        axes.set_yticks(range(len(ranked)), [plain_label(arm, 40) for arm in ranked])
        axes.set_ylim(-0.6, len(ranked) - 0.4)
        axes.set_xlabel(quality_label(results, metric))
        tidy(axes)
        axes.grid(axis="x", color="#e4e6ec")
        return embed_figure(figure)


def draw_pareto(results: StudyResults, metric: str) -> str:
    """Return a figure of a metric of all arms (compared recipes) against their costs, with the Pareto front."""
    from matplotlib.figure import Figure

    costs = pareto_costs(results)
    with figure_fonts(results.names):
        figure = Figure(figsize=(9.2, 3.4), layout="constrained")
        panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
        for axes, (label, by_arm) in zip(panels, costs.items(), strict=True):
            scored = {arm: results.scores(arm, metric) for arm in by_arm}
            points = [(arm, by_arm[arm], mean(scores)) for arm, scores in scored.items() if scores]
            front = pareto_front(metric, points)
            axes.plot([x for _, x, _ in front], [y for _, _, y in front], color="0.7", zorder=0)
            for arm, x, y in points:
                number = results.names.index(arm)
                axes.scatter(
                    [x],
                    [y],
                    color=color_of(number),
                    marker=MARKERS[number % len(MARKERS)],
                    s=45,
                    label=plain_label(arm, 40),
                )
            axes.set_xlabel(label)
            axes.locator_params(axis="x", nbins=5)
            axes.margins(0.12)
            tidy(axes)
        figure.axes[0].set_ylabel(quality_label(results, metric))
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize="small"
        )
        return embed_figure(figure)


def pareto_costs(results: StudyResults) -> dict[str, Mapping[str, float]]:
    """Return the cost of each arm (compared recipe), for each cost that is a horizontal axis of the figures.

    The result maps the label of the axis to costs by arm.
    """
    done = [x for x in results.outcomes if x.error is None and x.budget == results.budget]
    seconds = {
        name: mean(own)
        for name in results.names
        if (own := [x.cost.get("seconds", 0.0) for x in done if x.arm == name])
    }
    costs: dict[str, Mapping[str, float]] = {"seconds of training": seconds}
    if results.latency:
        costs["ms for one text"] = {name: cost["latency_ms"] for name, cost in results.latency.items()}
    return costs


def pareto_front(metric: str, points: Iterable[Point]) -> list[Point]:
    """Return the points (name, cost, quality) to which no other point is superior in both cost and quality.

    The cheapest point is first. `metric` decides whether high or low values are better.

    >>> pareto_front("task.accuracy", [("a", 1.0, 0.5), ("b", 2.0, 0.4), ("c", 3.0, 0.9)])
    [('a', 1.0, 0.5), ('c', 3.0, 0.9)]
    """
    front: list[Point] = []
    sign = 1 if lower_is_better(metric) else -1
    for point in sorted(points, key=lambda point: (point[1], sign * point[2])):
        if not front or is_better(metric, point[2], front[-1][2]):
            front.append(point)
    return front


def quality_label(results: StudyResults, metric: str) -> str:
    """Return the label of the axis that shows the metric."""
    unit = "lower is better" if lower_is_better(metric) else unit_name(results.factor(metric))
    return f"{metric} ({unit})" if unit else metric


def tidy(axes: Any) -> None:
    """Remove the frame of a matplotlib chart, and draw light horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e6ec")
    axes.set_axisbelow(True)


def draw_all_scores(results: StudyResults, metrics: Sequence[str]) -> list[str]:
    """Return one figure per metric with the scores of all arms (compared recipes)."""
    return [draw_scores(results, metric) for metric in metrics if results.ranking(metric)]
