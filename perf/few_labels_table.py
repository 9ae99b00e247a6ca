"""Summarize the few-labels benchmark: tables of scores, ranks, failures and times, and a figure of score against labels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from common import spread
from few_labels_data import METRICS, SOURCES
from few_labels_methods import METHODS

Line = dict[str, Any]
Scores = dict[str, dict[int, float]]  # by method and draw
CONFIDENCE = 0.95
OURS = ("ours", "ours, quick")
NOTES = "## Notes\n"  # the heading of what is written by hand
COLORS = {
    "ours": "#d62728", "ours, quick": "#8c564b", "embed+LR": "#1f77b4", "TF-IDF+LR": "#2ca02c", "SetFit": "#9467bd", "Trainer": "#ff7f0e",
    "majority": "#7f7f7f",
}  # fmt: skip

PAGE = """# Few labels

What {runs} gave on {sets} public labeled sets with {sizes} labels, beside other ways to use them. `ours` is
`pretune.finetune(model, rows, out=…)` with default options, `ours, quick` with `effort="quick"`, which trains no encoder. `embed+LR` is logistic regression on frozen embeddings (ridge regression for
similarity), and `TF-IDF+LR` on words and pairs of words, both with the regularization chosen by cross-validation; of pairs they see both
vectors, their difference and product, and their cosine; of tags, each word with its neighbors. `SetFit` is the package `setfit` and
`Trainer` that of `transformers`, each with its defaults{capped}. `majority` always answers the most frequent class of the training rows.

Labels are drawn at random from a pool of training rows, {draws}; if a class is missing, one row of it replaces another. Test rows are
fixed, up to {test_rows:,} of the official test or dev set. Scores are accuracy, for STS-B Spearman's correlation, and for tags entity F1, in
percent: mean ± standard deviation over draws. Texts are cut at 600 characters. Each run had {cores}; seconds are those of training.

{machines}

    python perf/few_labels.py pack DATA --data few_labels.xz
    python perf/few_labels.py run --data few_labels.xz --models {models}
    python perf/few_labels.py table --page docs/measurements/few-labels.md

A method is **within noise of the best** of a cell (a set, a model, a number of labels) if the mean of the paired differences to the best
method over draws is not larger than their standard error times the 95 % quantile of Student's t. A run is **below the majority** if its score is lower
than that of the majority class by more than 1.96 standard errors of a score on so many test rows. Ranks are means over cells, 1 is best.
"""


def by_cell(lines: Sequence[Line], model: str) -> dict[tuple[str, int], Scores]:
    """Return the scores of each set and number of labels in which a model ran, by method and draw, with methods without a model."""
    cells: dict[tuple[str, int], Scores] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if "score" in line and line["model"] in (model, "-"):
            cells[line["set"], line["n"]][line["method"]][line["draw"]] = line["score"]
    order = {name: number for number, name in enumerate(SOURCES)}
    used = {(line["set"], line["n"]) for line in lines if "score" in line and line["model"] == model}
    cells = {cell: scores for cell, scores in cells.items() if cell in used}
    return dict(sorted(cells.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0])))


def best_method(scores: Scores) -> str:
    """Return the method with the highest mean."""
    return max(scores, key=lambda method: mean(scores[method].values()))


def within_noise(scores: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Return whether scores by draw are lower than the best ones by no more than the noise of paired differences.

    >>> within_noise({0: 0.70, 1: 0.75}, {0: 0.71, 1: 0.74}), within_noise({0: 0.70, 1: 0.75}, {0: 0.80, 1: 0.85})
    (True, False)
    """
    from scipy.stats import t

    differences = [best[draw] - scores[draw] for draw in scores if draw in best]
    if not differences:
        return False
    if len(differences) == 1:
        return differences[0] <= 0
    error = spread(differences) / math.sqrt(len(differences))
    return mean(differences) <= float(t.ppf(CONFIDENCE, len(differences) - 1)) * error + 1e-9


def ranks(scores: Scores) -> dict[str, float]:
    """Return the rank of each method by its mean, 1 for the highest; ties share the mean of their ranks.

    >>> ranks({"a": {0: 0.9}, "b": {0: 0.5}, "c": {0: 0.5}})
    {'a': 1.0, 'b': 2.5, 'c': 2.5}
    """
    means = {method: mean(values.values()) for method, values in scores.items()}
    return {
        method: 1 + sum(x > own for x in means.values()) + (sum(x == own for x in means.values()) - 1) / 2
        for method, own in means.items()
    }


def below_majority(line: Line) -> bool:
    """Return whether the score of a run is lower than the majority baseline's by more than 1.96 standard errors."""
    chance, rows = line["majority"], line["test_rows"]
    error = math.sqrt(chance * (1 - chance) / rows) if line["kind"] == "classify" else 1 / math.sqrt(rows - 1)
    return line["score"] < chance - 1.96 * error


def models_of(lines: Iterable[Line]) -> list[str]:
    """Return the models of the results, in order of appearance."""
    return [name for name in dict.fromkeys(line["model"] for line in lines) if name != "-"]


def methods_of(lines: Iterable[Line]) -> list[str]:
    """Return the methods of the results, in the order of the tables."""
    present = {line["method"] for line in lines}
    return [method for method in METHODS if method in present]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table whose first `words` columns are aligned to the left, the others to the right."""
    rule = ["---" if at < words else "---:" for at in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def summary_table(lines: Sequence[Line], model: str) -> str:
    """Return one row per method: ranks, cells within noise of the best, runs below the majority, failures and times."""
    cells = by_cell(lines, model)
    everywhere = [scores for scores in cells.values() if set(scores) == set(methods_of(lines))]
    sizes = sorted({n for _, n in cells})
    rows = []
    for method in methods_of(lines):
        own = [line for line in lines if line["method"] == method and line["model"] in (model, "-")]
        done = [line for line in own if "score" in line]
        where = [scores for scores in cells.values() if method in scores]
        good = sum(within_noise(scores[method], scores[best_method(scores)]) for scores in where)
        times = [[line["seconds"] for line in done if line["n"] == n and "seconds" in line] for n in sizes]
        rows.append(
            [
                method,
                f"{mean(ranks(scores)[method] for scores in where):.2f}" if where else "–",
                f"{mean(ranks(scores)[method] for scores in everywhere):.2f}" if everywhere else "–",
                f"{good} of {len(where)}",
                f"{sum(map(below_majority, done))} of {len(done)}",
                str(len(own) - len(done)),
                *(f"{mean(each):.1f}" if each else "–" for each in times),
            ]
        )
    header = [
        "method",
        "mean rank",
        f"in the {len(everywhere)} cells of all methods",
        "within noise of the best",
        "runs below majority",
        "failed",
    ]
    return table([*header, *(f"seconds, {n} labels" for n in sizes)], rows)


def score_table(lines: Sequence[Line], model: str) -> str:
    """Return one row per set and number of labels with the mean and standard deviation of each method; the best is bold."""
    methods = methods_of(lines)
    rows = []
    for (name, n), scores in by_cell(lines, model).items():
        best = best_method(scores)
        row = [name, str(n)]
        for method in methods:
            if method not in scores:
                row.append("–")
                continue
            values = [100 * value for value in scores[method].values()]
            text = f"{mean(values):.1f} ± {spread(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"
            row.append(f"**{text}**" if method == best else text)
        if own := next((method for method in OURS if method in scores), None):
            row.append("yes" if within_noise(scores[own], scores[best]) else f"no, {gap(scores, own, best):+.1f}")
        else:
            row.append("–")
        rows.append(row)
    return table(["set", "labels", *methods, "ours within noise of the best"], rows, words=1)


def gap(scores: Scores, own: str, best: str) -> float:
    """Return by how many points the mean of the method `own` differs from that of the best method."""
    return 100 * (mean(scores[own].values()) - mean(scores[best].values()))


def failures(lines: Iterable[Line]) -> str:
    """Return one line per kind of error with its number of runs, or nothing."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        if "error" in line:
            found[line["method"], line["error"].split("\n")[0][:160]] += 1
    return "\n".join(f"- {method}, {count} runs: {error}" for (method, error), count in sorted(found.items()))


def summarize(lines: Sequence[Line]) -> str:
    """Return the tables of all models as Markdown."""
    lines = last_of_each(lines)
    parts = []
    for model in models_of(lines):
        parts += [f"## {model}", summary_table(lines, model), score_table(lines, model)]
    if problems := failures(lines):
        parts += ["## Failed runs", problems]
    return "\n\n".join(parts)


def last_of_each(lines: Iterable[Line]) -> list[Line]:
    """Return the last line of each run: one that was repeated after a failure counts once."""
    keys = ("set", "model", "n", "draw", "method")
    return list({tuple(line[key] for key in keys): line for line in lines}.values())


def estimate(rows: Sequence[Line], jobs: int, minutes: float, speed: float) -> str:
    """Return how many comparisons of all methods fit into `minutes` of `jobs` processes, by the seconds of earlier runs.

    A comparison is a set, a number of labels, a model, and a draw; runs without a model count half, as two models share them.
    """
    done = [row for row in last_of_each(rows) if "score" in row and "seconds" in row]
    cost: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in done:
        cost[row["method"], row["model"], row["n"]].append(row["seconds"] + row["predict_seconds"])
    sizes, models = sorted({row["n"] for row in done}), models_of(done)
    table_rows, totals = [], []
    for model in models:
        for n in sizes:
            own = {method: mean(cost[method, model, n]) for method in METHODS if (method, model, n) in cost}
            own |= {method: mean(cost[method, "-", n]) / len(models) for method in METHODS if (method, "-", n) in cost}
            totals.append(sum(own.values()) / speed)
            seconds = [f"{own[method]:.0f}" if method in own else "–" for method in methods_of(done)]
            table_rows.append([model, str(n), *seconds, f"{totals[-1]:.0f}"])
    fits = 60 * minutes * jobs / mean(totals)
    header = ["model", "labels", *methods_of(done), "together"]
    return f"{table(header, table_rows, words=1)}\n\n{fits:.0f} comparisons fit into {minutes:g} minutes of {jobs} jobs"


def figure(lines: Sequence[Line], model: str, file: Path) -> None:
    """Plot the score of each method against the number of labels, one panel per set, with standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = by_cell(lines, model)
    names = list(dict.fromkeys(name for name, _ in cells))
    kinds = {line["set"]: line["kind"] for line in lines if "kind" in line}
    columns = min(4, len(names))
    height = -(-len(names) // columns)
    canvas, axes = plt.subplots(height, columns, figsize=(3 * columns, 2.4 * height), squeeze=False, sharex=True)
    handles: dict[str, Any] = {}
    for panel, name in zip(axes.flat, names, strict=False):
        for method in methods_of(lines):
            points = [(n, list(s[method].values())) for (own, n), s in cells.items() if own == name and method in s]
            if not points:
                continue
            handles[method] = panel.errorbar(
                [n for n, _ in points],
                [100 * mean(values) for _, values in points],
                [100 * spread(values) / math.sqrt(len(values)) for _, values in points],
                color=COLORS[method],
                linestyle="--" if method == "majority" else "-",
                linewidth=2.2 if method in OURS else 1.2,
                marker=None if method == "majority" else "o",
                markersize=3.5,
                zorder=3 if method in OURS else 2,
            )
        panel.set_title(f"{name} ({METRICS[kinds[name]]})", fontsize=9)
        panel.set_xscale("log")
        sizes = sorted({n for _, n in cells})
        panel.set_xticks(sizes, [str(n) for n in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=8, labelbottom=True)
    for panel in list(axes.flat)[len(names) :]:
        panel.axis("off")
    canvas.supxlabel("labels", fontsize=10)
    ordered = [method for method in METHODS if method in handles]
    canvas.legend([handles[m] for m in ordered], ordered, loc="upper center", ncols=len(ordered), frameon=False)
    canvas.tight_layout(rect=(0, 0, 1, 1 - 0.32 / (2.4 * height)))
    canvas.savefig(file, dpi=110)
    plt.close(canvas)


def write_page(lines: Sequence[Line], page: Path) -> None:
    """Write the page with its tables, and one figure per model beside it; notes that it has, written by hand, are kept."""
    lines = last_of_each(lines)
    models = models_of(lines)
    measured = [line for line in lines if "date" in line]
    steps = sorted({line["setfit_max_steps"] for line in lines if "setfit_max_steps" in line})
    cores = sorted({line["cores"] for line in measured})
    machines = sorted(
        {
            f"{line['date']}, {line['cpu']}, "
            + (f"{line['gpu']}, " if line["device"] == "cuda" and "gpu" in line else "")
            + f"Python {line['python']}, torch {line['torch']}, transformers {line['transformers']}."
            for line in measured
        }
    )
    text = PAGE.format(
        runs=f"{len(lines):,} runs",
        sets=len({line["set"] for line in lines}),
        sizes=" or ".join(str(n) for n in sorted({line["n"] for line in lines})),
        draws=f"{draws} times" if (draws := len({line["draw"] for line in lines})) > 1 else "once",
        test_rows=max(line["test_rows"] for line in lines if "test_rows" in line),
        cores=" or ".join(f"{n} core" + "s" * (n > 1) for n in cores),
        capped=f" (SetFit with at most {', '.join(map(str, steps))} steps)" if steps else "",
        machines=" ".join(machines),
        models=" ".join(models),
    )
    parts = [text.strip()]
    for model in models:
        parts += [f"## {model}", summary_table(lines, model)]
        cells = by_cell(lines, model)
        if len(cells) > len({name for name, _ in cells}):  # a set has several numbers of labels
            picture = page.with_name(f"few_labels_{model}.png")
            figure(lines, model, picture)
            parts.append(f"![Score against the number of labels, {model}]({picture.name})")
        parts.append(score_table(lines, model))
    if problems := failures(lines):
        parts += ["## Failed runs", problems]
    notes = page.read_text(encoding="utf-8").partition(NOTES)[2] if page.exists() else ""
    parts += [NOTES + notes.rstrip()] if notes else []
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
