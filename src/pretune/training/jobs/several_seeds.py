"""Several seeds: what small data sets are worth is known only from more than one run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pretune.runtime.errors import PretuneError, if_option
from pretune.runtime.process_pool import share_out
from pretune.runtime.progress import say
from pretune.training.jobs.finetuning import Plan, finetune
from pretune.training.run_folder import RECIPE, RESULTS, Run, finish_run, new_run, start_run

FOLDER = "seeds"
MANY = 10_000  # examples, from which on one seed tells enough
USUAL = 5  # seeds with fewer

Finetune = Callable[[Plan, Any, bool], Run]


def finetune_seeds(plan: Plan, material: Any, resume: bool = False, finetune: Finetune = finetune) -> Run:
    """Carry out a plan with as many seeds as it asks for; the run is that of the best one, and tells of all."""
    few = material.judged and material.size < MANY
    count = plan.seeds or (USUAL if few else 1)
    if count == 1:
        if plan.devices > 1 and plan.seeds is None:
            raise PretuneError(
                f"--devices applies only to several seeds, and {material.size:,} examples get one; leave it out{if_option('seeds', ', or give --seeds')}"
            )
        return finetune(plan, material, resume)
    if not material.judged:
        raise PretuneError(
            f"{plan.train}: {count} seeds are compared on examples for judging{if_option('dev', '; name a file with --dev')}"
        )
    if plan.seeds is None:
        quicker = if_option("seeds", "; --seeds 1 is quicker")
        say(f"{material.size:,} examples are few: {count} seeds, the best one kept{quicker}")
    new = not (plan.out / RECIPE).is_file()
    start_run(plan.out, "finetune", plan.recipe(), resume)
    jobs = {}
    for number in range(count):
        seed = plan.seed + number
        own = replace(plan, seed=seed, seeds=1, devices=1, out=plan.out / FOLDER / str(seed))
        jobs[f"seed {seed} ({number + 1} of {count})"] = own, material, finetune
    with new_run(plan.out, new):
        runs = {plan.seed + number: run for number, run in enumerate(run_seeds(jobs, plan.devices))}
    return keep_best(plan, material, runs)


def run_seeds(jobs: Mapping[str, tuple[Any, ...]], devices: int) -> Iterator[Run | None]:
    """What `one_seed` comes to with each of these arguments, in order; shared out, where there are several devices."""
    if devices > 1:
        say(f"{len(jobs)} trainings on {devices} devices")
        yield from share_out(one_seed, jobs.values(), devices)
        return
    for name, job in jobs.items():
        say(name)
        yield one_seed(*job)


def one_seed(plan: Plan, material: Any, finetune: Finetune = finetune) -> Run | None:
    """A run, gone on with or finished already; None where its gradient was not a number."""
    begun = (plan.out / RECIPE).is_file()
    if (plan.out / RESULTS).is_file():
        return Run(plan.out)
    try:
        return finetune(plan, material, begun)
    except PretuneError as error:
        if "not a number" not in str(error):
            raise
        say(f"seed {plan.seed} failed: {error}")
        return None


def keep_best(plan: Plan, material: Any, runs: dict[int, Run | None]) -> Run:
    """Copy the best run to the plan's folder, and write what all of them came to."""
    name = f"dev/{material.decides}"
    scores = {seed: run.results[name] for seed, run in runs.items() if run is not None}
    if not scores:
        raise PretuneError(f"{plan.out}: all {len(runs)} seeds failed; lower the learning rate")
    best = max(scores, key=lambda seed: scores[seed])
    # A run that learned nothing answers as if it had not looked at the text.
    floor = material.floor()
    failed = len(runs) - sum(value > floor + 1e-9 for value in scores.values())
    chosen = runs[best]
    assert chosen is not None
    for path in chosen.folder.iterdir():
        if path.is_file() and path.name not in (RECIPE, RESULTS):
            shutil.copy2(path, plan.out / path.name)
    summary = summarize([run.results for run in runs.values() if run is not None])
    told: dict[str, Any] = {
        "count": len(runs),
        "failed": failed,
        "best": best,
        "each": list(scores.values()),
        **summary,
    }
    spread = summary[name]
    say(
        f"{material.decides} over {len(runs)} seeds: {spread['mean']:.4g} ± {spread['sd']:.2g}, "
        f"{failed} failed; kept seed {best} with {scores[best]:.4g}"
    )
    return finish_run(plan.out, {**chosen.results, "seeds": told})


def summarize(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of everything that was measured on the examples for judging.

    >>> summarize([{"dev/accuracy": 0.5}, {"dev/accuracy": 0.7}])["dev/accuracy"]["mean"]
    0.6
    """
    names = [name for name in results[0] if name.startswith("dev/")]
    found = {name: [result[name] for result in results] for name in names}
    return {name: {"mean": mean(x), "sd": stdev(x) if len(x) > 1 else 0.0} for name, x in found.items()}


def seed_runs(folder: Path) -> list[Run]:
    """The runs of all seeds, if there were several."""
    return [Run(path) for path in sorted((folder / FOLDER).glob("*"), key=lambda p: int(p.name))]
