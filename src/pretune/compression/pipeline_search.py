"""A search over pipelines of distillation, pruning, and quantization for the best model that meets a target.

A pipeline joins steps with `>`: layers=6 (distill into this many lower layers), heads=0.4, ffn_units=0.5, or sparsity=0.8 (prune this
fraction and fine-tune), and int8. Pipelines with a common prefix share its models.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pretune.compression import distillation, pruning_job, quantization
from pretune.compression.benchmark import evaluate_quality, measure_costs
from pretune.compression.compression_job import CompressionJob
from pretune.compression.pruning import PruningSpec
from pretune.compression.targets import Candidate, Target, choose_candidate, pareto_front
from pretune.compression.task_model import TrainedModel
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info
from pretune.training.run_folder import RESULTS, Run, copy_run_files, finish_run, start_run

STEPS = ("layers", "heads", "ffn_units", "sparsity", "int8")
CANDIDATES, PLOT = "candidates", "pareto.png"


@dataclass(frozen=True, kw_only=True)
class CompressionSearch(CompressionJob):
    """A compression search job: the model, the targets, and the pipelines of compression steps to try."""

    model: str
    targets: Sequence[Target]
    pipelines: Sequence[str] = ()

    def recipe(self) -> dict[str, Any]:
        """Return the options that determine the result of a search, named like the command-line options."""
        known: dict[str, Any] = {"model": self.model, "train": self.train, "dev": self.dev, **self.columns}
        known |= {"target": [str(target) for target in self.targets]}
        known |= {"pipelines": list(self.pipelines), "epochs": self.epochs, "seed": self.seed}
        return self.write_recipe(known)


def parse_pipeline(text: str) -> tuple[tuple[str, float], ...]:
    """Return the steps of a compression pipeline, each with its name and its number.

    >>> parse_pipeline("layers=6 > int8")
    (('layers', 6.0), ('int8', 0.0))
    """
    steps = []
    for part in text.split(">"):
        name, _, number = (x.strip() for x in part.partition("="))
        if name not in STEPS:
            raise PretuneError(f"--pipelines {text}: unknown step {name!r}; {suggest(name, STEPS)}")
        try:
            steps.append((name, float(number) if name != "int8" else 0.0))
        except ValueError as error:
            raise PretuneError(
                f"--pipelines {text}: the step {name!r} needs a number; write, for example, {name}=0.5"
            ) from error
    names = [name for name, _ in steps]
    if "layers" in names[1:] or "int8" in names[:-1]:
        raise PretuneError(
            f"--pipelines {text}: the step 'layers' must be the first, and the step 'int8' the last; reorder the steps"
        )
    return tuple(steps)


def default_pipelines(depth: int) -> list[str]:
    """Return the default compression pipelines for a model of `depth` layers, from weak to strong compression."""
    counts = sorted({max(1, round(depth * share)) for share in (0.75, 0.5, 0.25)} - {depth}, reverse=True)
    found = ["int8", "heads=0.4 > ffn_units=0.4", "heads=0.4 > ffn_units=0.4 > int8"]
    for count in counts:
        found += [f"layers={count}", f"layers={count} > int8"]
    return [*found, *(f"layers={count} > ffn_units=0.5 > int8" for count in counts[1:2])]


def run_search(job: CompressionSearch) -> Run:
    """Compress a model by all pipelines, measure and plot the results, and keep the best one that meets the targets."""
    before = TrainedModel.load(job.model)
    task = before.require_task("the search compares models by the metric of a task")
    dev = before.read(job.dev, job.columns)
    texts = list(job.pipelines) or default_pipelines(before.model.backbone.depth)
    pipelines = {text: parse_pipeline(text) for text in texts}
    start_run(job.out, "compress", job.recipe(), resume=False)
    original = evaluate_quality(before.model, task, dev)[task.primary_metric]
    models, scores, failed = {"uncompressed": before}, {"uncompressed": original}, dict[str, str]()
    steps_failed: dict[str, str] = {}
    for number, (text, steps) in enumerate(pipelines.items(), 1):
        log_info(f"candidate {number} of {len(pipelines)}: {text}")
        try:
            model = TrainedModel.load(run_pipeline(job, steps, steps_failed))
            own_task = model.require_task("the search compares models by the metric of a task")
            scores[text] = evaluate_quality(model.model, own_task, dev)[task.primary_metric]
            models[text] = model
        except Exception as error:  # the search continues with the other candidates
            failed[text] = reason(error)
            log_info(f"candidate {text} failed: {failed[text]}")
    if len(failed) == len(pipelines):
        shutil.rmtree(job.out)
        raise PretuneError(
            f"all {len(failed)} candidates failed; solve this first error: {next(iter(failed))}: {next(iter(failed.values()))}"
        )
    costs = measure_costs({name: (one.model, one.task, one.folder) for name, one in models.items()}, dev)
    candidates, rows = [], list[dict[str, Any]]()
    for name, cost in costs.items():
        share = scores[name] / original if original else 0.0
        candidates.append(Candidate(name, cost.bytes, cost.latency, share))
        rows.append({"model": name, **cost.describe(), task.primary_metric: scores[name], "relative_quality": share})
    rows += [{"model": name, "failed": why} for name, why in failed.items()]
    plot_pareto(candidates, job.out / PLOT, task.primary_metric)
    chosen = choose_candidate(candidates, job.targets)
    results: dict[str, Any] = {"model": job.model, "candidates": rows, "chosen": chosen.name if chosen else None}
    results["pareto"] = {kind: [one.name for one in pareto_front(candidates, kind)] for kind in ("bytes", "latency")}
    if chosen is None:
        log_info("no candidate in the table meets all targets; try others with --pipelines, or choose weaker targets")
    else:
        log_info(f"the chosen candidate is {chosen.name}")
        copy_run_files(models[chosen.name].folder, job.out)
    return finish_run(job.out, results)


def run_pipeline(job: CompressionSearch, steps: Sequence[tuple[str, float]], failed: dict[str, str]) -> Path:
    """Run the steps of a compression pipeline that have not been run yet, and return the folder of the last step.

    Errors are recorded in `failed` by the name of the step, so that other pipelines do not repeat the step.
    """
    source, name = Path(job.model), ""
    for step, number in steps:
        name = f"{name}+{step}{number:g}" if name else f"{step}{number:g}"
        folder = job.out / CANDIDATES / name
        if name not in failed and not (folder / RESULTS).is_file():
            try:
                run_step(job, step, number, source, folder)
            except Exception as error:
                failed[name] = reason(error)
                shutil.rmtree(folder, ignore_errors=True)
        if name in failed:
            raise PretuneError(failed[name])
        source = folder
    return source


def reason(error: Exception) -> str:
    """Return the message of an exception on one line, starting with its class unless it is a PretuneError."""
    return " ".join((str(error) if isinstance(error, PretuneError) else f"{type(error).__name__}: {error}").split())


def run_step(job: CompressionSearch, step: str, number: float, source: Path, folder: Path) -> None:
    """Run a compression step, such as layers=6 (name and number), on the model in `source`; write it to `folder`."""
    names = [field.name for field in fields(CompressionJob) if field.name != "out"]
    common: dict[str, Any] = {name: getattr(job, name) for name in names}
    match step:
        case "layers":
            student = f"first={number:g}"  # keeping the lower layers works best (docs/measurements/compression.md)
            common |= {"teachers": [job.model], "student": student, "match_layers": "100*hidden(skip)"}
            distillation.run_distillation(distillation.DistillationJob(out=folder, **common))
        case "int8":
            # All candidates are compared at the end.
            options: dict[str, Any] = {"columns": job.columns, "seed": job.seed, "compare": False}
            quantization.run_quantization(quantization.QuantizationJob(model=str(source), out=folder, **options))
        case _:
            pruning = PruningSpec(**{step: number}, seed=job.seed)  # type: ignore[arg-type]
            common |= {"model": str(source), "pruning": pruning}
            pruning_job.run_pruning(pruning_job.PruningJob(out=folder, **common))


def plot_pareto(candidates: Sequence[Candidate], file: Path, metric: str) -> None:
    """Plot the quality of candidate models against size and latency, with Pareto fronts as lines, and write a file."""
    from matplotlib.figure import Figure  # without pyplot, whose backend is the user's

    figure = Figure(figsize=(11, 4.5))
    axes = figure.subplots(1, 2, sharey=True)
    costs = (("bytes", 1e-6, "MB"), ("latency", 1e3, "ms for one text"))
    for axis, (cost, factor, label) in zip(axes, costs, strict=True):
        best = pareto_front(candidates, cost)
        axis.plot([factor * getattr(one, cost) for one in best], [one.quality for one in best], color="0.6", zorder=0)
        for one in candidates:
            x = factor * getattr(one, cost)
            axis.scatter([x], [one.quality], color="tab:blue" if one in best else "0.7")
            axis.annotate(one.name, (x, one.quality), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axis.set_xscale("log")
        axis.set_xlabel(label)
    axes[0].set_ylabel(f"share of {metric}")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
