"""A search over sequences of distilling, pruning and quantizing, under a target.

A sequence is steps joined with `>`: layers=6 (distilled into so many of its lower layers), heads=0.4, units=0.5, weights=0.8
(pruned by such shares, and trained again), int8. Sequences that begin alike share their beginnings.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.compression import distillation, pruning_job, quantization
from pretune.compression.measurement import bytes_of, compare, quality
from pretune.compression.pruning import Pruning
from pretune.compression.recovery import as_recipe
from pretune.compression.targets import Found, Target, choose, pareto
from pretune.compression.task_model import Trained
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.progress import say
from pretune.training.run_folder import RECIPE, RESULTS, Run, finish_run, start_run
from pretune.training.settings import Budget

STEPS = ("layers", "heads", "units", "weights", "int8")
CANDIDATES, PLOT = "candidates", "pareto.png"


@dataclass(frozen=True)
class Order:
    """What is searched, and for what."""

    model: str
    out: Path
    targets: Sequence[Target]
    train: str
    dev: str
    columns: Mapping[str, str] = field(default_factory=dict)
    sequences: Sequence[str] = ()
    epochs: float = 3.0
    budget: Budget | None = None
    learning: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str | None = None

    def recipe(self) -> dict[str, Any]:
        """Everything that decides the outcome, under the names of the verb's options."""
        known: dict[str, Any] = {"model": self.model, "train": self.train, "dev": self.dev, **self.columns}
        known |= {"target": [str(target) for target in self.targets]}
        known |= {"sequences": list(self.sequences), "epochs": self.epochs, "seed": self.seed}
        return as_recipe(known, self.learning, self.budget)


def parse_sequence(text: str) -> tuple[tuple[str, float], ...]:
    """Steps and their numbers.

    >>> parse_sequence("layers=6 > int8")
    (('layers', 6.0), ('int8', 0.0))
    """
    steps = []
    for part in text.split(">"):
        name, _, number = (x.strip() for x in part.partition("="))
        if name not in STEPS:
            raise PretuneError(f"--sequences {text}: unknown step {name!r}; {nearest(name, STEPS)}")
        try:
            steps.append((name, float(number) if name != "int8" else 0.0))
        except ValueError as error:
            raise PretuneError(f"--sequences {text}: {name} needs a number, such as {name}=0.5") from error
    names = [name for name, _ in steps]
    if "layers" in names[1:] or "int8" in names[:-1]:
        raise PretuneError(f"--sequences {text}: layers come first, and int8 last, as a graph is not changed")
    return tuple(steps)


def usual_sequences(depth: int) -> list[str]:
    """From mild to strong, for a model of so many layers."""
    counts = sorted({max(1, round(depth * share)) for share in (0.75, 0.5, 0.25)} - {depth}, reverse=True)
    found = ["int8", "heads=0.4 > units=0.4", "heads=0.4 > units=0.4 > int8"]
    for count in counts:
        found += [f"layers={count}", f"layers={count} > int8"]
    return [*found, *(f"layers={count} > units=0.5 > int8" for count in counts[1:2])]


def carry_out(order: Order) -> Run:
    """Make all candidates, measure them side by side, plot them, and keep the best that meets the target.

    A candidate that fails is reported with its reason, and the others go on.
    """
    before = Trained.load(order.model)
    task = before.need_task("candidates are compared by it")
    dev = before.read(order.dev, order.columns)
    texts = list(order.sequences) or usual_sequences(before.model.backbone.depth)
    sequences = {text: parse_sequence(text) for text in texts}
    start_run(order.out, "compress", order.recipe(), resume=False)
    whole = quality(before.model, task, dev)[task.decides]
    models, scores, failed = {"uncompressed": before}, {"uncompressed": whole}, dict[str, str]()
    steps_failed: dict[str, str] = {}
    for number, (text, steps) in enumerate(sequences.items(), 1):
        say(f"candidate {number} of {len(sequences)}: {text}")
        try:
            one = Trained.load(follow(order, steps, steps_failed))
            score = quality(one.model, one.need_task("it is"), dev)[task.decides]
        except Exception as error:  # the other candidates are worth more than a traceback
            failed[text] = reason(error)
            say(f"candidate {text} failed: {failed[text]}")
        else:
            models[text], scores[text] = one, score
    if len(failed) == len(sequences):
        shutil.rmtree(order.out)
        raise PretuneError(f"all {len(failed)} candidates failed; {next(iter(failed))}: {next(iter(failed.values()))}")
    costs = compare({name: (one.model, one.task, one.folder) for name, one in models.items()}, dev)
    found, rows = [], []
    for name, one in models.items():
        share = scores[name] / whole if whole else 0.0
        found.append(Found(name, bytes_of(one.folder), costs[name].latency, share))
        rows.append({"model": name, **costs[name].describe(), task.decides: scores[name], "share_of_quality": share})
    rows += [{"model": name, "failed": reason} for name, reason in failed.items()]
    draw(found, order.out / PLOT, task.decides)
    chosen = choose(found, order.targets)
    results: dict[str, Any] = {"model": order.model, "candidates": rows, "chosen": chosen.name if chosen else None}
    results["pareto"] = {cost: [one.name for one in pareto(found, cost)] for cost in ("bytes", "latency")}
    if chosen is None:
        say("no candidate meets the target; the table shows what there is, and --sequences takes others")
    else:
        say(f"chosen: {chosen.name}")
        copy_model(models[chosen.name].folder, order.out)
    return finish_run(order.out, results)


def follow(order: Order, steps: Sequence[tuple[str, float]], failed: dict[str, str]) -> Path:
    """Carry out a sequence of steps and return the folder of its result; a step that another sequence took is not repeated.

    `failed` has the reasons of steps that failed, by the names of their folders.
    """
    source, name = Path(order.model), ""
    for step, number in steps:
        name = f"{name}+{step}{number:g}" if name else f"{step}{number:g}"
        folder = order.out / CANDIDATES / name
        if name not in failed and not (folder / RESULTS).is_file():
            try:
                take(order, step, number, source, folder)
            except Exception as error:
                failed[name] = reason(error)
                shutil.rmtree(folder, ignore_errors=True)
        if name in failed:
            raise PretuneError(failed[name])
        source = folder
    return source


def reason(error: Exception) -> str:
    """Return why a candidate failed, in one line."""
    return " ".join((str(error) if isinstance(error, PretuneError) else f"{type(error).__name__}: {error}").split())


def take(order: Order, step: str, number: float, source: Path, folder: Path) -> None:
    """One step."""
    common: dict[str, Any] = {"train": order.train, "columns": order.columns, "epochs": order.epochs}
    common |= {"budget": order.budget, "learning": order.learning, "seed": order.seed, "device": order.device}
    match step:
        case "layers":
            student = f"first={number:g}"  # lower layers are missed more than upper ones (docs/compression.md)
            distillation.carry_out(
                distillation.Order([order.model], student, folder, match="100*hidden(skip)", dev=order.dev, **common)
            )
        case "int8":
            quantization.carry_out(quantization.Order(str(source), folder, columns=order.columns, seed=order.seed))
        case _:
            pruning = Pruning(**{step: number}, seed=order.seed)  # type: ignore[arg-type]
            pruning_job.carry_out(pruning_job.Order(str(source), folder, pruning, dev=order.dev, **common))


def copy_model(source: Path, out: Path) -> None:
    """Make a candidate the run's own model."""
    for path in source.iterdir():
        if path.is_file() and path.name not in (RECIPE, RESULTS):
            shutil.copy2(path, out / path.name)


def draw(found: Sequence[Found], file: Path, metric: str) -> None:
    """Quality against size and against latency; a line joins those that no other beats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axis, cost, factor, label in zip(
        axes, ("bytes", "latency"), (1e-6, 1e3), ("MB", "ms for one text"), strict=True
    ):
        best = pareto(found, cost)
        axis.plot([factor * getattr(one, cost) for one in best], [one.quality for one in best], color="0.6", zorder=0)
        for one in found:
            x = factor * getattr(one, cost)
            axis.scatter([x], [one.quality], color="tab:blue" if one in best else "0.7")
            axis.annotate(one.name, (x, one.quality), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axis.set_xscale("log")
        axis.set_xlabel(label)
    axes[0].set_ylabel(f"share of {metric}")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
