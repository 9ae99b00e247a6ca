"""How good with fewer labels: the same fine-tuning on parts of its examples, and beside it from random weights.

Parts are nested, so that a longer one has all that a shorter one has, and of every label about the same share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pretune.evaluation.baselines import controls
from pretune.metrics import score
from pretune.runtime.atomic_io import write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.examples.splits import stratum
from pretune.training.jobs.finetuning import Material, Plan
from pretune.training.jobs.several_seeds import run_seeds
from pretune.training.run_folder import Run

FOLDER, FILE = "curve", "curve.json"
SEEDS = 3  # at each size, unless the plan says otherwise
PRETRAINED, SCRATCH = "pretrained", "from scratch"


def nested(examples: Any, seed: int = 0) -> list[int]:
    """All rows in an order whose beginnings have labels in about the same shares as the whole.

    >>> from pretune.text.examples.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, list("abcdef"), labels=list("xxyyxy"))
    >>> sorted(rows.labels[row] for row in nested(rows)[:2])
    ['x', 'y']
    """
    draws = Draws(seed)
    order = sorted(range(len(examples)), key=lambda row: float(draws.uniform("curve", row)))
    at = dict(zip(order, places(stratum(examples, row) for row in order), strict=True))
    return sorted(at, key=lambda row: (at[row], row))


def places(kinds: Iterable[str]) -> list[float]:
    """Where each stands among those of its kind, between 0 and 1: in the order of these, beginnings have kinds in their shares.

    >>> places("xxyx")[1:3]
    [0.5, 0.5]
    """
    kinds = list(kinds)
    sizes, seen = Counter(kinds), Counter[str]()
    found = []
    for kind in kinds:
        found.append((seen[kind] + 0.5) / sizes[kind])
        seen[kind] += 1
    return found


def check_sizes(material: Material, sizes: Sequence[int]) -> None:
    """Refuse what no curve can be drawn of."""
    if not material.judged:
        raise PretuneError("--curve and --control are judged by answers to other rows; give them with --dev")
    if wrong := [size for size in sizes if not 1 < size < material.size]:
        raise PretuneError(
            f"--curve {wrong[0]}: sizes lie between 2 and {material.size:,}, all that there is to learn from"
        )


def learning_curve(
    plan: Plan, material: Material, run: Run, sizes: Sequence[int], scratch: bool
) -> list[dict[str, Any]]:
    """A point for each size and for all examples: means and spreads over seeds, by learner; written beside the run.

    With `scratch`, the same from random weights too. What is finished is not done again.
    """
    order = nested(material.rows, plan.seed)
    parts = {size: replace(material, rows=material.rows.take(order[:size])) for size in sorted(sizes)}
    parts[material.size] = material
    learners = (PRETRAINED, SCRATCH)[: 1 + scratch]
    wanted = [
        (size, learner) for size in parts for learner in learners if (size, learner) != (material.size, PRETRAINED)
    ]
    scores = part_scores(plan, parts, wanted)
    scores[material.size, PRETRAINED] = whole_scores(run, material)
    points = []
    for size, part in parts.items():
        point: dict[str, Any] = {"examples": size}
        for learner in learners:
            found = scores[size, learner]
            point[learner] = {"mean": mean(found), "sd": stdev(found) if len(found) > 1 else 0.0, "each": found}
        for learner, answers in controls(material.task, part.rows, part.dev).items():
            value = score(material.task, answers, part.dev)[material.decides]
            point[learner] = {"mean": value, "sd": 0.0, "each": [value]}
        points.append(point)
    write_json(run.folder / FILE, points)
    return points


def whole_scores(run: Run, material: Material) -> list[float]:
    """Those of the run itself, and of its seeds."""
    results = run.results
    return list(results["seeds"]["each"]) if "seeds" in results else [results[f"dev/{material.decides}"]]


def part_scores(
    plan: Plan, parts: Mapping[int, Material], wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], list[float]]:
    """Scores, one a seed, of learners on so many examples."""
    seeds = range(plan.seed, plan.seed + (plan.seeds or SEEDS))
    plans: dict[tuple[int, str, int], Plan] = {}
    for size, learner in wanted:
        own = replace(plan, seeds=1, devices=1, scratch=learner == SCRATCH)
        folder = plan.out / FOLDER / learner.replace(" ", "-") / str(size)
        plans |= {(size, learner, seed): replace(own, seed=seed, out=folder / str(seed)) for seed in seeds}
    jobs = {
        f"{size:,} examples, {learner}, seed {seed}": (own, parts[size]) for (size, learner, seed), own in plans.items()
    }
    scores: dict[tuple[int, str], list[float]] = {which: [] for which in wanted}
    for (size, learner, _), run in zip(plans, run_seeds(jobs, plan.devices), strict=True):
        if run is not None:
            scores[size, learner].append(run.results[f"dev/{parts[size].decides}"])
            (run.folder / "model.safetensors").unlink(missing_ok=True)
    for (size, _), found in scores.items():
        if not found:
            raise PretuneError(f"{plan.out}: all seeds failed on {size:,} examples; lower the learning rate")
    return scores
