"""Learning curves: fine-tuning on nested, stratified subsets of the examples, from pretrained and from random weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pretune.evaluation.baselines import trivial_baselines
from pretune.metrics import score
from pretune.runtime.atomic_io import write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.splits import stratification_label
from pretune.training.jobs.finetuning import FinetuningJob, TaskData
from pretune.training.jobs.several_seeds import run_seeds
from pretune.training.run_folder import Run

FOLDER, FILE = "curve", "curve.json"
SEEDS = 3  # per size by default
PRETRAINED, SCRATCH = "pretrained", "from scratch"


def stratified_order(examples: Any, seed: int = 0) -> list[int]:
    """Return the indices of all examples, ordered so that the first n of them are stratified by label for every n.

    >>> from pretune.text.examples.labeled import LabeledRows
    >>> rows = LabeledRows("x.csv", {}, list("abcdef"), labels=list("xxyyxy"))
    >>> sorted(rows.labels[row] for row in stratified_order(rows)[:2])
    ['x', 'y']
    """
    draws = EpochRandom(seed)
    order = sorted(range(len(examples)), key=lambda row: float(draws.uniform("curve", row)))
    at = dict(zip(order, relative_ranks(stratification_label(examples, row) for row in order), strict=True))
    return sorted(at, key=lambda row: (at[row], row))


def relative_ranks(kinds: Iterable[str]) -> list[float]:
    """Return the rank of each item among the items of its class, scaled to (0, 1).

    `kinds` gives the class of each item.

    >>> relative_ranks("xxyx")[1:3]
    [0.5, 0.5]
    """
    kinds = list(kinds)
    sizes, seen = Counter(kinds), Counter[str]()
    found = []
    for kind in kinds:
        found.append((seen[kind] + 0.5) / sizes[kind])
        seen[kind] += 1
    return found


def check_sizes(material: TaskData, sizes: Sequence[int]) -> None:
    """Raise an error if a learning curve lacks a dev set, or if one of its training set sizes is out of range."""
    if not material.has_dev:
        raise PretuneError("--learning-curve and --scratch-baseline need a dev set; give one with --dev")
    if wrong := [size for size in sizes if not 1 < size < material.size]:
        raise PretuneError(
            f"--learning-curve {wrong[0]}: sizes must be between 2 and {material.size - 1:,}, one less than the number of examples; choose sizes in this range"
        )


def run_learning_curve(
    plan: FinetuningJob, material: TaskData, run: Run, sizes: Sequence[int], scratch: bool
) -> list[dict[str, Any]]:
    """Fine-tune on subsets with the given sizes, and return one point of the learning curve per size.

    `plan` is the job whose settings are used, `material` has its examples, and `run` is the finished run on all of
    them. With `scratch`, random initial weights are compared, too.
    """
    order = stratified_order(material.rows, plan.seed)
    parts = {size: replace(material, rows=material.rows.take(order[:size])) for size in sorted(sizes)}
    parts[material.size] = material
    learners = (PRETRAINED, SCRATCH)[: 1 + scratch]
    wanted = [
        (size, learner) for size in parts for learner in learners if (size, learner) != (material.size, PRETRAINED)
    ]
    scores = part_scores(plan, parts, wanted)
    results = run.results
    whole = results["seeds"]["scores"] if "seeds" in results else [results[f"dev/{material.primary_metric}"]]
    scores[material.size, PRETRAINED] = list(whole)
    points = []
    for size, part in parts.items():
        point: dict[str, Any] = {"examples": size}
        for learner in learners:
            found = scores[size, learner]
            point[learner] = {"mean": mean(found), "sd": stdev(found) if len(found) > 1 else 0.0, "scores": found}
        for learner, answers in trivial_baselines(material.task, part.rows, part.dev).items():
            value = score(material.task, answers, part.dev)[material.primary_metric]
            point[learner] = {"mean": value, "sd": 0.0, "scores": [value]}
        points.append(point)
    write_json(run.folder / FILE, points)
    return points


def part_scores(
    plan: FinetuningJob, parts: Mapping[int, TaskData], wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], list[float]]:
    """Fine-tune on the data parts[size] for each (size, initialization) in `wanted`; return each seed's dev score."""
    seeds = range(plan.seed, plan.seed + (plan.num_seeds or SEEDS))
    plans: dict[tuple[int, str, int], FinetuningJob] = {}
    for size, learner in wanted:
        own = replace(plan, num_seeds=1, devices=1, from_scratch=learner == SCRATCH)
        folder = plan.out / FOLDER / learner.replace(" ", "-") / str(size)
        plans |= {(size, learner, seed): replace(own, seed=seed, out=folder / str(seed)) for seed in seeds}
    jobs = {
        f"{size:,} examples, {learner}, seed {seed}": (own, parts[size]) for (size, learner, seed), own in plans.items()
    }
    scores: dict[tuple[int, str], list[float]] = {which: [] for which in wanted}
    for (size, learner, _), run in zip(plans, run_seeds(jobs, plan.devices), strict=True):
        if run is not None:
            scores[size, learner].append(run.results[f"dev/{parts[size].primary_metric}"])
            (run.folder / "model.safetensors").unlink(missing_ok=True)
    for (size, _), found in scores.items():
        if not found:
            raise PretuneError(
                f"{plan.out}: with {size:,} examples, training diverged for every seed; lower the learning rate"
            )
    return scores
