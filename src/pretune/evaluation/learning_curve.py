"""How good with fewer labels: the same fine-tuning on parts of its examples, and beside it from random weights.

Parts are nested, so that a longer one has all that a shorter one has, and of every label about the same share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from pretune.atomic import write_json
from pretune.errors import PretuneError
from pretune.evaluation.controls import controls
from pretune.metrics import score
from pretune.progress import say
from pretune.randomness import Draws
from pretune.text.splitting import stratum
from pretune.training.finetuning import Material, Plan
from pretune.training.runs import Run
from pretune.training.seeds import one_seed

FOLDER, FILE = "curve", "curve.json"
SEEDS = 3  # at each size, unless the plan says otherwise
PRETRAINED, SCRATCH = "pretrained", "from scratch"


def nested(examples: Any, seed: int = 0) -> list[int]:
    """All rows in an order whose beginnings have labels in about the same shares as the whole.

    >>> from pretune.text.labeled import Labeled
    >>> rows = Labeled("x.csv", {}, list("abcdef"), labels=list("xxyyxy"))
    >>> sorted(rows.labels[row] for row in nested(rows)[:2])
    ['x', 'y']
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for row in range(len(examples)):
        kinds[stratum(examples, row)].append(row)
    draws = Draws(seed)
    places: dict[int, float] = {}
    for members in kinds.values():
        order = sorted(members, key=lambda row: float(draws.uniform("curve", row)))
        places |= {row: (number + 0.5) / len(order) for number, row in enumerate(order)}
    return sorted(places, key=lambda row: (places[row], row))


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
    seeds = range(plan.seed, plan.seed + (plan.seeds or SEEDS))
    points = []
    for size in [*sorted(sizes), material.size]:
        part = replace(material, rows=material.rows.take(order[:size])) if size < material.size else material
        point: dict[str, Any] = {"examples": size}
        for learner in (PRETRAINED, SCRATCH)[: 1 + scratch]:
            if learner == PRETRAINED and size == material.size:
                found = whole_scores(run, material)
            else:
                say(f"{size:,} examples, {learner}")
                found = part_scores(plan, part, learner, seeds)
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


def part_scores(plan: Plan, part: Material, learner: str, seeds: Sequence[int]) -> list[float]:
    """A score a seed."""
    found = []
    for seed in seeds:
        out = plan.out / FOLDER / learner.replace(" ", "-") / str(part.size) / str(seed)
        one = one_seed(replace(plan, seed=seed, seeds=1, out=out, scratch=learner == SCRATCH), part)
        if one is not None:
            found.append(one.results[f"dev/{part.decides}"])
            (out / "model.safetensors").unlink(missing_ok=True)
    if not found:
        raise PretuneError(f"{plan.out}: all seeds failed on {part.size:,} examples; lower the learning rate")
    return found
